"""Exact values of the predictors that know a prompt by its own history."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from vipray.predictors.beta import DiscountedBeta
from vipray.predictors.counts import DiscountedCounts
from vipray.predictors.kalman import Kalman, logit_observation
from vipray.predictors.last import LastRate
from vipray.predictors.moments import beta_moments, logit_normal_moments
from vipray.predictors.moving_average import MovingAverage
from vipray.predictors.variance_calibration import VarianceCalibration


def one(predictor, successes, trials):
    predictor.observe(["a"], np.array([successes]), np.array([trials]))


def test_moments_equal_integrals():
    for a, b in ((0.5, 0.5), (2.0, 7.0)):
        density = stats.beta(a, b)
        p, v = beta_moments(np.array([a]), np.array([b]))
        assert p[0] == pytest.approx(density.mean())
        assert v[0] == pytest.approx(4 * (density.mean() - density.moment(2)))
    for mean, variance in ((0.3, 0.5), (-2.0, 4.0)):

        def weighted(g, power, mean=mean, variance=variance):
            p = 1 / (1 + np.exp(-g))
            return (p, 4 * p * (1 - p))[power] * stats.norm.pdf(g, mean, np.sqrt(variance))

        p, v = logit_normal_moments(np.array([mean]), np.array([variance]))
        assert p[0] == pytest.approx(integrate.quad(weighted, -40, 40, args=(0,))[0], abs=1e-4)
        assert v[0] == pytest.approx(integrate.quad(weighted, -40, 40, args=(1,))[0], abs=1e-3)


def test_counts_fade_with_steps_and_not_with_visits():
    counts = DiscountedCounts(2, [1.0, np.inf])
    nobody = np.array([], dtype=np.int64)
    counts.add(np.array([0]), np.array([4.0]), np.array([2.0]))
    counts.add(nobody, np.array([]), np.array([]))
    counts.add(np.array([0]), np.array([1.0]), np.array([0.0]))
    successes, failures = counts.of(np.array([0, 1]))
    assert successes.tolist() == [[2.0, 0.0], [5.0, 0.0]]  # 4 / 2² + 1, and 4 + 1
    assert failures.tolist() == [[0.5, 0.0], [2.0, 0.0]]


def test_beta_by_hand():
    predictor = DiscountedBeta(["a", "b"], half_life=1.0)
    one(predictor, 3, 4)
    one(predictor, 2, 2)
    a, b = 0.5 + 3 / 2 + 2, 0.5 + 1 / 2 + 0
    p, v = predictor.predict(["a", "b"])
    assert p == pytest.approx([a / (a + b), 0.5])
    assert v == pytest.approx([4 * a * b / ((a + b) * (a + b + 1)), 0.5])


def test_kalman_by_hand():
    predictor = Kalman(["a"], process_noise=0.1, prior_variance=4.0)
    one(predictor, 6, 8)
    (y,), (r,) = logit_observation(np.array([6.0]), np.array([2.0]))
    gain = 4.1 / (4.1 + r)
    expected = logit_normal_moments(np.array([gain * y]), np.array([(1 - gain) * 4.1]))
    assert predictor.predict(["a"])[0] == pytest.approx(expected[0])
    before = predictor.predict(["a"])[1]
    for _ in range(50):
        predictor.observe([], np.array([], dtype=int), np.array([], dtype=int))
    assert abs(predictor.predict(["a"])[0] - 0.5) < abs(expected[0] - 0.5)  # less is known, so closer to one half
    assert predictor.predict(["a"])[1] != pytest.approx(before)


def test_moving_average_and_last_by_hand():
    average, last = MovingAverage(["a"], window=2), LastRate(["a"], clip=0.1)
    for successes in (8, 0, 4):
        one(average, successes, 8)
        one(last, successes, 8)
    assert average.predict(["a"])[0] == pytest.approx([4.5 / 17])  # 0 and 4 of 16, and Jeffreys' half
    assert last.predict(["a"])[0] == pytest.approx([0.5])
    one(last, 0, 8)
    assert last.predict(["a"])[0] == pytest.approx([0.1])


def test_variance_is_trusted_only_as_far_as_it_came_true():
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, 4000)
    wins = rng.binomial(8, p).astype(float)
    informed, blind = VarianceCalibration(np.inf), VarianceCalibration(np.inf)
    assert blind.apply(np.array([0.2, 0.9])).tolist() == pytest.approx([0.55, 0.55])  # nothing known: no difference
    informed.observe(4 * p * (1 - p), wins, 8.0 - wins)
    blind.observe(rng.permutation(4 * p * (1 - p)), wins, 8.0 - wins)
    assert informed.slope == pytest.approx(1.0, abs=0.05)
    assert blind.slope < 0.05
    spread = np.ptp(blind.apply(np.array([0.0, 1.0])))
    assert spread < 0.05 and blind.apply(np.array([0.5]))[0] == pytest.approx(np.mean(4 * p * (1 - p)), abs=0.03)
