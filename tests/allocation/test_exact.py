from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import allocate


def variance(n, p, estimator, weight=None):
    weight = np.ones(len(n)) if weight is None else np.asarray(weight)
    n = np.asarray(n, dtype=np.int64)
    return float((weight**2 * 4 * p * (1 - p) * ESTIMATORS[estimator].variance(n)).sum())


def brute_force(p, budget, lower, upper, estimator, weight=None):
    """The least variance over all integer allocations."""
    candidates = itertools.product(range(lower, upper + 1), repeat=len(p))
    return min(variance(n, p, estimator, weight) for n in candidates if sum(n) == budget)


problems = st.tuples(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(3, 4),  # lower
    st.integers(0, 5),  # upper - lower
    st.floats(0, 1),  # where the budget lies between its bounds
    st.sampled_from(["rloo", "dr_grpo"]),
)


@settings(max_examples=300, deadline=None)
@given(problems)
def test_the_optimum_equals_brute_force(problem):
    probs, lower, room, place, estimator = problem
    p, upper = np.array(probs), lower + room
    budget = round(len(p) * (lower + place * room))
    n = allocate(p, budget, lower=lower, upper=upper, estimator=estimator)
    assert n.sum() == budget and n.min() >= lower and n.max() <= upper and n.dtype == np.int64
    assert variance(n, p, estimator) == pytest.approx(brute_force(p, budget, lower, upper, estimator), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 4)), min_size=2, max_size=3), st.integers(0, 12))
def test_the_weighted_optimum_equals_brute_force(rows, extra):
    p, weight = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    budget = min(2 * len(p) + extra, 8 * len(p))
    n = allocate(p, budget, lower=2, upper=8, prompt_weight=weight)
    assert variance(n, p, "rloo", weight) == pytest.approx(brute_force(p, budget, 2, 8, "rloo", weight), abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_more_variance_never_gets_fewer_rollouts_and_order_does_not_matter(probs, random):
    p = np.array(probs)
    n = allocate(p, 6 * len(p), lower=2, upper=16)
    a = p * (1 - p)
    for q, r in itertools.permutations(range(len(p)), 2):
        if a[q] > a[r] * (1 + 1e-9) + 1e-12:
            assert n[q] >= n[r]
    order = list(range(len(p)))
    random.shuffle(order)
    shuffled = allocate(p[order], 6 * len(p), lower=2, upper=16)
    assert variance(shuffled, p[order], "rloo") == pytest.approx(variance(n, p, "rloo"), abs=1e-12)


@pytest.mark.parametrize(
    ("p", "budget", "lower", "upper", "expected"),
    [
        ([0.0, 0.0, 0.0], 8, 2, 9, [3, 3, 2]),  # no gain anywhere: even
        ([1.0, 1.0], 4, 2, 9, [2, 2]),  # C = B L
        ([0.5, 0.1], 18, 2, 9, [9, 9]),  # C = B U
        ([0.3], 7, 2, 9, [7]),  # B = 1
        ([0.5, 0.5, 0.5], 10, 2, 9, [4, 3, 3]),  # ties: the first comes first
        ([0.0, 0.5, 0.0], 20, 2, 9, [6, 9, 5]),  # the bound is reached, the rest has no gain
    ],
)
def test_degenerate_inputs(p, budget, lower, upper, expected):
    assert allocate(np.array(p), budget, lower=lower, upper=upper).tolist() == expected


@pytest.mark.parametrize("p", [[-0.1, 0.5], [0.5, 1.1], [0.5, float("nan")], []])
def test_impossible_probabilities_are_refused(p):
    with pytest.raises(ValueError, match=r"success_prob|vectors"):
        allocate(np.array(p), 8, lower=2, upper=9)


@pytest.mark.parametrize("budget", [3, 19])
def test_an_infeasible_budget_is_refused_with_the_numbers(budget):
    with pytest.raises(ValueError, match=rf"budget of {budget} .* 2 prompts with bounds 2 and 9: .*\[4, 18\]"):
        allocate(np.array([0.5, 0.5]), budget, lower=2, upper=9)


def test_a_lower_bound_below_the_estimators_minimum_is_refused():
    with pytest.raises(ValueError, match="lower must be >= 3 for dr_grpo"):
        allocate(np.array([0.5, 0.5]), 8, lower=2, upper=9, estimator="dr_grpo")


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=lambda e: e.name)
def test_gains_fall_from_the_smallest_lower_bound_on(estimator):
    gains = estimator.gain(np.arange(estimator.min_lower, 200))
    assert np.all(np.diff(gains) < 0)
    first = estimator.min_lower - 1
    if first >= 2:
        assert estimator.gain(np.array([first]))[0] < gains[0]  # below it, the gain still rises
