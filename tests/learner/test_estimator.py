"""The estimator, exactly: every outcome of a small softmax policy enumerated, through the learner's own code."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.learner.support import make_allocation
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import allocate
from vipray.learner.batch import BatchOptions, training_batch
from vipray.learner.loss import Objective, policy_loss
from vipray.learner.micro_batch import packed_micro_batch
from vipray.learner.packing import Unit
from vipray.records import ROLLOUT_SCHEMA

ON_POLICY = Objective(clip_low=0.5, clip_high=0.5)
PAPER = ((0.05, 0.5), (4, 12), (8, 8))  # success probabilities; adaptive and uniform allocation of 16 rollouts


def estimate(logits, outcomes, allocation, options):
    """Gradient [B, V] of the loss at one batch; a completion is one token, the first half of them right answers."""
    rows = []
    num_right = logits.shape[1] // 2
    for q, prompt_id in enumerate(allocation.prompt_ids):
        logprobs = torch.log_softmax(logits[q], -1)
        for k, token in enumerate(outcomes[q]):
            row = {
                "step": allocation.step, "prompt_id": prompt_id, "k": k, "generator_id": "g", "policy_version_first": 0,
                "policy_version_last": 0, "prompt_token_ids": [q], "completion_token_ids": [token],
                "logprobs": [float(logprobs[token])], "finish_reason": "stop", "text": "", "latency_s": 0.0,
                "reward": float(token < num_right), "outcome": "correct" if token < num_right else "wrong",
            }  # fmt: skip
            rows.append(row)
    batch = training_batch([pa.RecordBatch.from_pylist(rows, schema=ROLLOUT_SCHEMA)], allocation, options)
    policy = logits.clone().requires_grad_()
    (groups,) = batch.minibatches
    for group in groups:
        tensors = packed_micro_batch((Unit(group),))
        q = group[0].prompt_token_ids[0]
        policy_loss(torch.log_softmax(policy[q], -1)[tensors.targets], tensors, ON_POLICY).loss.backward()
    return torch.zeros_like(logits) if policy.grad is None else -policy.grad


def moments(logits, allocation, options, direction=None):
    """Exact mean [B, V] of the estimate, and variances [B] of its part in a direction [V], over every possible batch.

    A prompt's row depends on its own outcomes alone, so each is enumerated with the others at rest.
    """
    prob = torch.softmax(logits.double(), -1)
    mean, variances = torch.zeros_like(logits).double(), torch.zeros(len(logits)).double()
    rest = [(logits.shape[1] - 1,) * n for n in allocation.n.tolist()]
    for q, n in enumerate(allocation.n.tolist()):
        square = 0.0
        # The order within a group changes nothing: multisets with their multiplicities are enough.
        for group in itertools.combinations_with_replacement(range(logits.shape[1]), n):
            weight = _multiplicity(group) * float(prob[q, list(group)].prod())
            row = estimate(logits, [*rest[:q], group, *rest[q + 1 :]], allocation, options)[q].double()
            mean[q] += weight * row
            square += 0.0 if direction is None else weight * float(row @ direction) ** 2
        variances[q] = 0.0 if direction is None else square - float(mean[q] @ direction) ** 2
    return mean, variances


def _multiplicity(group):
    counts = np.unique(group, return_counts=True)[1]
    return math.factorial(len(group)) // math.prod(math.factorial(count) for count in counts.tolist())


def exact_gradient(logits, weights):
    """Of the weighted sum of the prompts' success probabilities."""
    policy = logits.double().clone().requires_grad_()
    (torch.softmax(policy, -1)[:, 0] * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    return policy.grad


LOGITS = torch.tensor([[0.3, -0.2, 0.5], [-1.0, 0.4, 0.1], [1.5, 0.0, 0.2]])


@pytest.mark.parametrize("n", [(2, 2, 2), (2, 4, 3), (5, 2, 3)])
@pytest.mark.parametrize("weight", [(1.0, 1.0, 1.0), (0.5, 2.0, 1.0)])
def test_rloo_with_uneven_groups_is_unbiased_for_the_weighted_mean_over_prompts(n, weight):
    mean, _ = moments(LOGITS, make_allocation(0, n, weight), BatchOptions())
    expected = exact_gradient(LOGITS, [w / 3 for w in weight])
    assert torch.allclose(mean, expected, atol=1e-6)


def test_a_flat_mean_over_rollouts_follows_another_objective():
    n = (2, 4, 3)
    mean, _ = moments(LOGITS, make_allocation(0, n), BatchOptions(aggregation="sequence_mean"))
    assert torch.allclose(mean, exact_gradient(LOGITS, [size / sum(n) for size in n]), atol=1e-6)


def test_dr_grpo_is_rloo_shrunk_by_one_part_in_n():
    n = (2, 4, 3)
    mean, _ = moments(LOGITS, make_allocation(0, n), BatchOptions(estimator="dr_grpo"))
    assert torch.allclose(mean, exact_gradient(LOGITS, [(1 - 1 / size) / 3 for size in n]), atol=1e-6)


# Outcomes are (right, left), (right, right), (wrong, left), (wrong, right): whether an answer is right, and something
# else about it that does not depend on that, as nearly every direction in the space of a large model's weights.
ELSEWHERE = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)  # its score is ±1: unit variance
SUCCESS = torch.tensor([0.5, 0.5, -0.5, -0.5], dtype=torch.float64)  # the logit of success: the score tells the reward


def variance(p, n, direction=ELSEWHERE, **settings):
    """Variance of the gradient in a direction, summed over the prompts."""
    logits = torch.tensor([[math.log(q / (1 - q))] * 2 + [0.0] * 2 for q in p])
    return float(moments(logits, make_allocation(0, n), BatchOptions(**settings), direction)[1].sum())


def test_the_example_that_the_documentation_gives():
    p, adaptive, uniform = PAPER
    assert variance(p, adaptive) == pytest.approx(0.0096, abs=5e-5)
    assert variance(p, uniform) == pytest.approx(0.0106, abs=5e-5)
    assert variance(p, adaptive, aggregation="sequence_mean") == pytest.approx(0.0138, abs=5e-5)
    assert variance(p, uniform, aggregation="sequence_mean") == pytest.approx(0.0106, abs=5e-5)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_the_variance_is_the_formula_that_the_allocation_minimises(estimator):
    p, n = (0.1, 0.6, 0.9), (3, 6, 4)
    g = ESTIMATORS[estimator].variance(np.array(n))
    expected = sum(q * (1 - q) * factor for q, factor in zip(p, g.tolist(), strict=True)) / len(p) ** 2
    assert variance(p, n, estimator=estimator) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("p", [(0.05, 0.5), (0.02, 0.4), (0.9, 0.5), (0.1, 0.95)])
def test_the_exact_allocation_has_less_variance_than_the_uniform_one(p):
    n = tuple(allocate(np.array(p), 12, lower=2, upper=10).tolist())
    assert n != (6, 6) and sum(n) == 12
    assert variance(p, n) < variance(p, (6, 6))


def test_in_the_one_direction_that_decides_success_the_formula_does_not_hold():
    """A limit of the method: there, reward and score are one, and the adaptive allocation is no gain."""
    p, adaptive, uniform = PAPER
    assert variance(p, adaptive, SUCCESS) == pytest.approx(0.0027, abs=5e-5)
    assert variance(p, uniform, SUCCESS) == pytest.approx(0.0018, abs=5e-5)
