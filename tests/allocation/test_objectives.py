from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.advantages import advantages
from vipray.allocation.exact import allocate
from vipray.allocation.objectives import OBJECTIVES, prompt_weights

VALUE = {  # f(p), away from where the weight is bounded
    "mean_success": lambda p, k: p,
    "log_success": lambda p, k: np.log(p),
    "sqrt_success": lambda p, k: 2 * np.sqrt(p),
    "pass_at_k": lambda p, k: 1 - (1 - p) ** k,
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 64))
def test_weights_have_mean_one_and_are_bounded(objective, probs, k):
    weight = prompt_weights(objective, np.array(probs), k)
    assert weight.shape == (len(probs),) and weight.mean() == pytest.approx(1.0)
    assert (weight >= 0).all() and (weight <= len(probs) + 1e-9).all()
    largest_ratio = {"mean_success": 1.0, "log_success": 20.0, "sqrt_success": 20.0**0.5}.get(objective)
    if largest_ratio:
        assert weight.max() <= largest_ratio * weight.min() * (1 + 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_weights_are_the_derivative_of_the_objective(objective):
    p, step = np.linspace(0.06, 0.94, 12), 1e-6
    slope = (VALUE[objective](p + step, 5) - VALUE[objective](p - step, 5)) / (2 * step)
    assert prompt_weights(objective, p, 5) == pytest.approx(slope / slope.mean(), rel=1e-6)


def test_where_the_objective_is_flat_everywhere_the_weights_are_one():
    assert prompt_weights("pass_at_k", np.ones(3), 4).tolist() == [1.0, 1.0, 1.0]
    assert prompt_weights("pass_at_k", np.array([1.0, 1 - 1e-12]), 60).tolist() == [1.0, 1.0]  # slopes underflow


def test_pass_at_one_is_mean_success():
    assert prompt_weights("pass_at_k", np.array([0.0, 0.3, 1.0]), 1).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("objective", "p", "k", "words"),
    [
        ("median", [0.5], 1, "objective must be one of mean_success"),
        ("pass_at_k", [0.5], 0, "k must be >= 1, got 0"),
        ("log_success", [float("nan")], 1, "success_prob"),
        ("log_success", [1.5], 1, "1.5"),
    ],
)
def test_bad_input_is_refused(objective, p, k, words):
    with pytest.raises(ValueError, match=words):
        prompt_weights(objective, np.array(p), k)


def expected_gradient(p, n, weight_of_outcome):
    """Expected gradient by each prompt's own logit, over every outcome of all rollouts.

    ∇ log-probability of a rollout is 1 - p for a success and -p for a failure.
    """
    prompt_ids = [str(q) for q, count in enumerate(n) for _ in range(count)]
    prompt = np.array([int(prompt_id) for prompt_id in prompt_ids])
    gradient = np.zeros(len(p))
    for outcome in itertools.product([0.0, 1.0], repeat=len(prompt)):
        reward = np.array(outcome)
        probability = np.where(reward == 1, p[prompt], 1 - p[prompt]).prod()
        terms = advantages(prompt_ids, reward, "rloo") * (reward - p[prompt])
        per_prompt = np.bincount(prompt, weights=terms) / n
        gradient += probability * weight_of_outcome(prompt, reward) * per_prompt / len(p)
    return gradient


def test_weights_fixed_before_sampling_leave_the_gradient_unbiased():
    p, predicted = np.array([0.3, 0.8, 0.1]), np.array([0.5, 0.7, 0.2])  # the prediction need not be right
    weight = prompt_weights("log_success", predicted)
    n = allocate(predicted, 11, lower=2, upper=6, prompt_weight=weight)
    assert len(set(n.tolist())) > 1
    exact = weight * p * (1 - p) / len(p)  # ∇ of the mean of w p
    assert expected_gradient(p, n, lambda prompt, reward: weight) == pytest.approx(exact, abs=1e-12)


def test_weights_from_the_sampled_rewards_would_not():
    p, n = np.array([0.3, 0.8]), np.array([3, 4])

    def sampled(prompt, reward):
        return prompt_weights("log_success", np.bincount(prompt, weights=reward) / n)

    found = expected_gradient(p, n, sampled)
    exact = p * (1 - p) * prompt_weights("log_success", p) / len(p)
    assert np.abs(found - exact).max() > 0.01
