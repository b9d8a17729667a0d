from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import allocate
from vipray.allocation.predicted_batch import predicted_batch
from vipray.allocation.relaxed import allocate_relaxed, relaxed_counts

rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(rows, st.integers(3, 5), st.integers(0, 20), st.floats(0, 1), st.sampled_from(list(ESTIMATORS)))
def test_relaxed_below_exact_below_rounded(rows, lower, room, place, estimator):
    p, weight = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    budget, upper = round(len(p) * (lower + place * room)), lower + room
    batch = predicted_batch(p, estimator=estimator, prompt_weight=weight)

    def variance(n):
        return float((weight**2 * batch.gradient_variance * batch.estimator.variance(n)).sum())

    bounds = {"lower": lower, "upper": upper}
    real = relaxed_counts(batch, budget, **bounds)
    assert real.sum() == pytest.approx(budget) and real.min() >= lower and real.max() <= upper * (1 + 1e-12)
    rounded = allocate_relaxed(p, budget, estimator=estimator, prompt_weight=weight, **bounds)
    assert rounded.sum() == budget and rounded.min() >= lower and rounded.max() <= upper
    exact = allocate(p, budget, estimator=estimator, prompt_weight=weight, **bounds)
    slack = 1e-9 * (1 + variance(exact))
    assert variance(real) <= variance(exact) + slack
    assert variance(exact) <= variance(rounded) + slack


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_real_optimum_is_that_of_a_general_solver(estimator):
    p = np.random.default_rng(3).random(8)
    batch = predicted_batch(p, estimator=estimator)

    def variance(n):
        return float((batch.gradient_variance * batch.estimator.variance(n)).sum())

    found = optimize.minimize(
        variance,
        np.full(8, 8.0),
        method="SLSQP",
        bounds=[(3, 14)] * 8,
        constraints={"type": "eq", "fun": lambda n: n.sum() - 64},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert relaxed_counts(batch, 64, lower=3, upper=14) == pytest.approx(found.x, abs=2e-3)


def test_rounding_down_and_handing_out_the_rest_can_miss_the_optimum():
    a = np.array([2.9**2] * 10 + [29.0**2])  # at the real optimum n - 1 is 2.9, ten times, and 29
    p = np.full(11, 0.5)
    batch = predicted_batch(p, gradient_variance=a)
    assert relaxed_counts(batch, 69, lower=2, upper=40) == pytest.approx([3.9] * 10 + [30.0])
    rounded = allocate_relaxed(p, 69, lower=2, upper=40, gradient_variance=a)
    exact = allocate(p, 69, lower=2, upper=40, gradient_variance=a)
    assert rounded.tolist() == [4] * 9 + [3, 30]
    assert exact.tolist() == [4] * 10 + [29]
    assert (a / (exact - 1)).sum() < 0.995 * (a / (rounded - 1)).sum()


@pytest.mark.parametrize(
    ("p", "budget", "expected"),
    [
        ([0.0, 0.0, 1.0], 8, [3, 3, 2]),
        ([0.0, 0.5, 0.0], 20, [6, 9, 5]),
        ([0.5, 0.5], 4, [2, 2]),
        ([0.5, 0.1], 18, [9, 9]),
        ([0.3], 7, [7]),
    ],
)
def test_degenerate_inputs(p, budget, expected):
    assert allocate_relaxed(np.array(p), budget, lower=2, upper=9).tolist() == expected


def test_bad_input_is_refused_as_by_the_exact_solver():
    with pytest.raises(ValueError, match="lower must be >= 3 for dr_grpo"):
        allocate_relaxed(np.array([0.5]), 5, lower=2, upper=9, estimator="dr_grpo")
    with pytest.raises(ValueError, match="2 prompts"):
        allocate_relaxed(np.array([0.5, 0.5]), 50, lower=2, upper=9)
