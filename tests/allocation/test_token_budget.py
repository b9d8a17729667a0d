from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from vipray.allocation import knapsack_search
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import allocate
from vipray.allocation.gains import vip
from vipray.allocation.predicted_batch import predicted_batch
from vipray.allocation.token_budget import spend_tokens


def variance(n, p, estimator="rloo"):
    return float((4 * p * (1 - p) * ESTIMATORS[estimator].variance(np.asarray(n))).sum())


def brute_force(p, cost, budget, lower, upper, estimator):
    """The least variance over all integer allocations that cost at most `budget`."""
    candidates = itertools.product(range(lower, upper + 1), repeat=len(p))
    return min(variance(n, p, estimator) for n in candidates if np.dot(n, cost) <= budget)


whole_costs = st.integers(1, 12).map(float)
any_costs = st.floats(0.5, 50.0, width=16)  # few bits: their sums are exact


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), whole_costs | any_costs), min_size=1, max_size=4),
    st.integers(0, 5),
    st.floats(0, 1.1),
    st.sampled_from(["rloo", "dr_grpo"]),
)
def test_the_optimum_equals_brute_force(rows, room, place, estimator):
    p, cost = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    budget = np.ceil(cost.sum() * (3 + place * room))
    arguments = {"lower": 3, "upper": 3 + room, "estimator": estimator}
    n = allocate(p, budget, token_cost=cost, **arguments)
    assert n @ cost <= budget and n.min() >= 3 and n.max() <= 3 + room and n.dtype == np.int64
    best = brute_force(p, cost, budget, 3, 3 + room, estimator)
    assert variance(n, p, estimator) == pytest.approx(best, abs=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_equals_that_of_integer_programming(seed):
    rng = np.random.default_rng(seed)
    p, cost = rng.random(12), rng.integers(20, 400, 12).astype(np.float64)
    gains, budget = vip(predicted_batch(p), np.arange(3, 16)), int(7 * cost.sum())
    found = spend_tokens(gains, cost, budget, lower=3)
    per_item = np.repeat(cost, gains.shape[1])
    best = optimize.milp(
        -gains.ravel(),
        constraints=optimize.LinearConstraint(per_item[None, :], ub=budget - 3 * cost.sum()),
        integrality=np.ones(gains.size),
        bounds=optimize.Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert found.gap == 0.0
    assert variance(found.n, p) == pytest.approx(variance(np.full(12, 3), p) + best.fun, abs=1e-9)


def test_the_largest_gain_per_token_is_not_the_optimum():
    gains = np.array([[4.0], [7.0]])  # per token 4 and 3.5
    assert spend_tokens(gains, np.array([1.0, 2.0]), 8, lower=2).n.tolist() == [2, 3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(1, 1000), st.integers(0, 100))
def test_with_equal_costs_it_is_the_optimum_over_rollouts(probs, cost, extra):
    p = np.array(probs)
    num_rollouts = min(2 * len(p) + extra, 9 * len(p))
    n = allocate(p, (num_rollouts + 0.5) * cost, lower=2, upper=9, token_cost=np.full(len(p), cost))
    assert n.sum() <= num_rollouts
    assert variance(n, p) == pytest.approx(variance(allocate(p, num_rollouts, lower=2, upper=9), p), abs=1e-11)


def test_large_batches_are_solved_to_the_end():
    rng = np.random.default_rng(0)
    p, cost = rng.random(512), np.exp(rng.normal(5, 0.7, 512))
    found = spend_tokens(vip(predicted_batch(p), np.arange(3, 32)), cost, int(8 * cost.sum()), lower=3)
    assert found.gap == 0.0 and found.n @ cost <= int(8 * cost.sum())


def test_a_search_that_is_cut_short_says_how_far_off_it_may_be(monkeypatch):
    rng = np.random.default_rng(1)
    p = rng.random(40)
    cost = np.round(1000 * p * (1 - p)) + 1  # equal gain per token everywhere: nothing can be ruled out
    gains, budget = vip(predicted_batch(p), np.arange(3, 16)), int(8.3 * cost.sum())
    exact = spend_tokens(gains, cost, budget, lower=3)
    assert exact.gap == 0.0
    monkeypatch.setattr(knapsack_search, "_MAX_STATES", 50)
    short = spend_tokens(gains, cost, budget, lower=3)
    assert short.n @ cost <= budget
    assert 0.0 < short.gap <= gains.max()
    assert variance(exact.n, p) <= variance(short.n, p) <= variance(exact.n, p) + short.gap + 1e-12


@pytest.mark.parametrize(
    ("p", "budget", "expected"),
    [
        ([0.0, 1.0], 1000, [2, 2]),  # no gain: nothing is bought
        ([0.5, 0.5], 60, [2, 2]),  # just the lower bounds
        ([0.5, 0.5], 10_000, [9, 9]),  # more than the upper bounds cost
    ],
)
def test_degenerate_budgets(p, budget, expected):
    assert allocate(np.array(p), budget, lower=2, upper=9, token_cost=np.array([10.0, 20.0])).tolist() == expected


@pytest.mark.parametrize(
    ("cost", "budget", "words"),
    [
        ([10.0, 20.0], 59, r"budget of 59 tokens .* 2 prompts with 2 rollouts each: they cost 60"),
        ([10.0, 0.0], 59, r"token_cost must be finite and > 0, got 0\.0"),
        ([10.0, float("nan")], 59, r"token_cost .* got nan"),
        ([10.0], 59, r"token_cost must have one value for each of 2 prompts"),
    ],
)
def test_bad_costs_and_budgets_are_refused_with_the_numbers(cost, budget, words):
    with pytest.raises(ValueError, match=words):
        allocate(np.array([0.5, 0.5]), budget, lower=2, upper=9, token_cost=np.array(cost))
