from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from vipray.allocation.objectives import OBJECTIVES, prompt_weights
from vipray.arrays import FloatArray
from vipray.evaluation import toy_policy
from vipray.evaluation.toy_policy import ORACLE, Arm, ToyPolicy, ToySettings, estimate_gradient, initial_policy, train
from vipray.predictors.beta import DiscountedBeta

SMALL = ToySettings(num_prompts=10, num_skills=3, batch_size=4, budget=20, lower=3, upper=9, steps=12)
VALUE: dict[str, Callable[[FloatArray], FloatArray]] = {
    "mean_success": lambda p: p,
    "log_success": np.log,
    "sqrt_success": lambda p: 2 * np.sqrt(p),
}


def make_beta(ids, _features):
    return DiscountedBeta(ids, half_life=8.0)


def small_policy():
    rng = np.random.default_rng(3)
    return ToyPolicy(rng.normal(size=(5, 2)), rng.normal(size=2), rng.normal(size=5), own_scale=0.7)


def expected_gradient(policy, rows, n, weight, estimator):
    """Of all outcomes of the step, each by its probability."""
    p = np.repeat(policy.success_prob()[rows], n)
    total = np.zeros(len(policy.shared) + len(policy.own))
    for outcome in itertools.product([0.0, 1.0], repeat=int(n.sum())):
        r = np.array(outcome)
        gradient = estimate_gradient(policy, rows, n, r, weight, estimator)
        total += np.prod(np.where(r == 1.0, p, 1 - p)) * np.concatenate([gradient.shared, gradient.own])
    return total


def numeric_gradient(policy, value, step=1e-6):
    """Central differences of `value` in shared, then own parameters."""
    slopes = []
    for name in ("shared", "own"):
        for index in range(len(getattr(policy, name))):
            moved = []
            for sign in (1, -1):
                parameters = getattr(policy, name).copy()
                parameters[index] += sign * step
                moved.append(value(dataclasses.replace(policy, **{name: parameters}).success_prob()))
            slopes.append((moved[0] - moved[1]) / (2 * step))
    return np.array(slopes)


@pytest.mark.parametrize("objective", VALUE)
def test_with_exact_predictions_the_gradient_is_that_of_the_objective(objective):
    policy, rows, n = small_policy(), np.array([4, 0, 2]), np.array([2, 4, 3])
    p = policy.success_prob()[rows]
    assert p.min() > 0.05  # where weights are not bounded
    expected = expected_gradient(policy, rows, n, prompt_weights(objective, p), "rloo")
    mean_slope = OBJECTIVES[objective](p, 1).mean()  # weights have mean 1
    exact = numeric_gradient(policy, lambda all_p: VALUE[objective](all_p[rows]).mean()) / mean_slope
    assert expected == pytest.approx(exact, abs=1e-8)


def test_with_any_weights_the_gradient_is_that_of_the_weighted_mean_success():
    policy, rows, n, weight = small_policy(), np.array([1, 3]), np.array([5, 2]), np.array([0.3, 1.7])
    expected = expected_gradient(policy, rows, n, weight, "rloo")
    exact = numeric_gradient(policy, lambda p: (weight * p[rows]).mean())
    assert expected == pytest.approx(exact, abs=1e-8)


def test_dr_grpo_shrinks_each_prompt_by_its_own_count():
    policy, rows, n, weight = small_policy(), np.array([1, 3]), np.array([5, 2]), np.array([0.3, 1.7])
    expected = expected_gradient(policy, rows, n, weight, "dr_grpo")
    exact = numeric_gradient(policy, lambda p: (weight * (n - 1) / n * p[rows]).mean())
    assert expected == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("predictor", ["beta", ORACLE])
def test_a_seed_repeats_exactly_and_seeds_differ(predictor):
    arm = Arm("log_success", "vip", predictor)
    first, again, other = (train(SMALL, arm, seed, make_beta) for seed in (5, 5, 6))
    assert first.shape == (13,) and np.array_equal(first, again) and not np.array_equal(first, other)


def test_arms_of_a_seed_share_prompts_batches_and_luck(monkeypatch):
    seen = []

    def spy(policy, rows, n, rewards, weight, estimator):
        seen.append((rows.copy(), policy.features.copy(), n.copy(), rewards.copy()))
        return estimate_gradient(policy, rows, n, rewards, weight, estimator)

    monkeypatch.setattr(toy_policy, "estimate_gradient", spy)
    frozen = dataclasses.replace(SMALL, learning_rate=1e-12)
    arms = Arm("mean_success", "uniform", "beta"), Arm("mean_success", "vip", ORACLE)
    start = [train(frozen, arm, 1, make_beta)[0] for arm in arms]
    assert start[0] == start[1]
    half = len(seen) // 2
    shared_rollouts = 0
    for (rows, x, n, rewards), (other_rows, other_x, other_n, other) in zip(seen[:half], seen[half:], strict=True):
        assert np.array_equal(rows, other_rows) and np.array_equal(x, other_x)
        ends, other_ends = np.cumsum(n), np.cumsum(other_n)
        for q in range(len(rows)):
            both = min(n[q], other_n[q])
            mine = rewards[ends[q] - n[q] :][:both]
            assert np.array_equal(mine, other[other_ends[q] - other_n[q] :][:both])
            shared_rollouts += both
    assert shared_rollouts > 100
    assert any(not np.array_equal(mine[2], other[2]) for mine, other in zip(seen[:half], seen[half:], strict=True))


def test_every_step_spends_the_budget_within_the_bounds_and_shows_it_to_the_predictor():
    class Spy(DiscountedBeta):
        def observe(self, prompt_ids, successes, trials):
            counts.append(trials)
            super().observe(prompt_ids, successes, trials)

    counts: list[np.ndarray] = []
    train(SMALL, Arm("sqrt_success", "vip", "beta"), 0, lambda ids, _: Spy(ids, half_life=8.0))
    assert len(counts) == SMALL.steps
    for n in counts:
        assert n.sum() == SMALL.budget and n.min() >= SMALL.lower and n.max() <= SMALL.upper
    assert len({tuple(n) for n in counts}) > 1


def test_training_raises_success():
    settings = dataclasses.replace(SMALL, steps=100)
    success = train(settings, Arm("mean_success", "uniform", "beta"), 0, make_beta)
    assert success[-1] > success[0] + 0.1


def test_a_budget_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a budget of 100 does not fit 4 prompts with bounds 3 and 9"):
        train(dataclasses.replace(SMALL, budget=100), Arm("mean_success", "vip", ORACLE), 0, make_beta)


def test_prompts_share_their_first_skill():
    policy = initial_policy(ToySettings(), np.random.default_rng(0))
    assert np.ptp(policy.features[:, 0]) == 0.0 and policy.features[0, 0] > 0.0
    assert policy.success_prob().mean() == pytest.approx(0.28, abs=0.05)
