from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vipray.learner.loss import Objective, policy_loss, token_logprobs
from vipray.learner.micro_batch import packed_micro_batch
from vipray.learner.packing import TrainingRollout, Unit


def batch(*rollouts):
    """Each rollout is (log-probabilities of the policy that sampled, advantage, weight of a token)."""
    unit = Unit(tuple(TrainingRollout((1,), (2,) * len(old), tuple(old), a, w) for old, a, w in rollouts))
    return packed_micro_batch((unit,))


TWO = batch(([-1.0, -2.0], 2.0, 0.125), ([-1.5], -1.0, 0.25))


def test_the_clipped_loss_by_hand():
    terms = policy_loss(TWO.sampling_logprobs + torch.log(torch.tensor([1.5, 0.9, 0.5])), TWO, Objective())
    # min(1.5, 1.28) 2 and 0.9 · 2 with 0.125 each, min(-0.5, -0.8) with 0.25
    assert float(terms.loss) == pytest.approx(-0.25 * (1.28 + 0.9 - 0.8), rel=1e-5)
    assert terms.is_clipped.tolist() == [True, False, True]
    assert float(terms.log_ratio.abs().max()) == pytest.approx(math.log(2), rel=1e-5)


def _gradient(logprobs, objective, **others):
    logprobs = logprobs.clone().requires_grad_()
    policy_loss(logprobs, TWO, objective, **others).loss.backward()
    return logprobs.grad.tolist()


def test_truncated_importance_weights_by_hand():
    """At one optimiser step the ratio is one, so the gradient of a token is -w c A."""
    off_policy = torch.log(torch.tensor([3.0, 1.5, 0.5]))
    logprobs = TWO.sampling_logprobs + off_policy
    token = _gradient(logprobs, Objective(correction="token", correction_cap=2.0))
    assert token == pytest.approx([-0.125 * 2.0 * 2, -0.125 * 1.5 * 2, 0.25 * 0.5], rel=1e-5)
    sequence = _gradient(logprobs, Objective(correction="sequence", correction_cap=4.0))
    assert sequence == pytest.approx([-0.125 * 4.0 * 2, -0.125 * 4.0 * 2, 0.25 * 0.5], rel=1e-5)
    plain = _gradient(logprobs, Objective(clip_low=0.9, clip_high=9.0))
    assert plain == pytest.approx([-0.125 * 3.0 * 2, -0.125 * 1.5 * 2, 0.25 * 0.5], rel=1e-5)


def test_after_the_first_optimiser_step_the_ratio_is_to_the_policy_at_the_start():
    start = TWO.sampling_logprobs + math.log(1.5)
    terms = policy_loss(start + math.log(1.1), TWO, Objective(correction="token"), start_logprobs=start)
    assert float(terms.loss) == pytest.approx(-1.5 * 1.1 * (0.125 * 2 * 2 - 0.25), rel=1e-5)
    assert terms.mismatch.tolist() == pytest.approx([math.log(1.5)] * 3, rel=1e-5)


def test_a_rollout_is_rejected_by_the_geometric_mean_of_its_ratios():
    logprobs = TWO.sampling_logprobs + torch.log(torch.tensor([4.0, 1.0, 0.4]))  # geometric means 2 and 0.4
    both = policy_loss(logprobs, TWO, Objective(correction="token", reject_below=0.5, reject_above=1.9))
    assert both.is_rejected.all() and float(both.loss) == 0.0
    above = policy_loss(logprobs, TWO, Objective(correction="token", reject_above=1.9))
    assert above.is_rejected.tolist() == [True, True, False]
    none = policy_loss(logprobs, TWO, Objective(correction="token", reject_below=0.3, reject_above=2.1))
    assert not none.is_rejected.any()


def test_the_divergence_is_k3():
    reference = TWO.sampling_logprobs + 0.3
    objective = Objective(kl_coefficient=0.5)
    terms = policy_loss(TWO.sampling_logprobs, TWO, objective, reference_logprobs=reference)
    k3 = math.exp(0.3) - 0.3 - 1
    assert terms.divergence.tolist() == pytest.approx([k3] * 3, rel=1e-4)
    gain = 0.125 * 2 * 2 - 0.25
    assert float(terms.loss) == pytest.approx(-gain + 0.5 * k3 * (0.125 * 2 + 0.25), rel=1e-4)


@given(st.lists(st.floats(-200, 0), min_size=3, max_size=3), st.sampled_from(["none", "token", "sequence"]))
def test_no_log_probability_makes_the_gradient_infinite(values, correction):
    objective = Objective(correction=correction, kl_coefficient=0.1, reject_above=1e6)
    logprobs = torch.tensor(values)
    gradient = _gradient(logprobs, objective, reference_logprobs=torch.zeros(3))
    assert all(math.isfinite(value) for value in gradient)


def test_log_probabilities_and_entropies_are_those_of_the_tempered_distribution():
    logits, targets = torch.randn(4, 7), torch.tensor([0, 3, 6, 2])
    for temperature in (0.7, 1.0):
        expected = torch.distributions.Categorical(logits=logits / temperature)
        logprobs, entropies = token_logprobs(logits, targets, temperature)
        assert torch.allclose(logprobs, expected.log_prob(targets), atol=1e-6)
        assert torch.allclose(entropies, expected.entropy(), atol=1e-5)
    logits[0, 1] = -torch.inf  # a token that is impossible
    assert torch.isfinite(token_logprobs(logits, targets, 1.0)[1]).all()
