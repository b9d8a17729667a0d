"""Predictors that share what they see between prompts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.predictors.device_arrays import DeviceNamespace
from vipray.predictors.features import PromptFeatures
from vipray.predictors.hybrid import Hybrid
from vipray.predictors.linear_posterior import LinearPosterior
from vipray.predictors.noisy_gp import NoisyGP
from vipray.predictors.ridge import Ridge

IDS = [f"p{q}" for q in range(60)]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))


def test_linear_posterior_equals_the_textbook_and_forgets_what_is_replaced():
    rng = np.random.default_rng(1)
    phi, y, beta = rng.normal(size=(9, 3)), rng.normal(size=9), rng.uniform(0.5, 2, 9)
    alpha = np.array([0.5, 1.0, 2.0])
    linear = LinearPosterior(3)
    nothing = (np.zeros(9), np.zeros(9))
    linear.replace(phi, nothing, (np.ones(9), np.full(9, 7.0)))
    linear.replace(phi, (np.ones(9), np.full(9, 7.0)), (y, beta))
    precision = phi.T @ np.diag(beta) @ phi + np.diag(alpha)
    mean, variance = linear.solve(alpha).predict(phi)
    assert mean == pytest.approx(phi @ np.linalg.solve(precision, phi.T @ (beta * y)))
    assert variance == pytest.approx(np.diag(phi @ np.linalg.inv(precision) @ phi.T))


def test_kernel_features_span_the_kernel_on_the_inducing_prompts():
    features = PromptFeatures(X, None, None, num_inducing=60)
    phi = features.of(np.arange(60))[:, 1:]
    sq = ((X[:, None] - X[None]) ** 2).sum(-1)
    kernel = np.exp(-sq / (2 * features._h**2))
    assert phi @ phi.T == pytest.approx(kernel, abs=1e-4)


def test_features_by_block():
    tasks = ["a", "b", "a", "b"]
    texts = ["1 + 1", "2 + 2", "1000 + 1000", "2000 + 2000 + 2000"]
    features = PromptFeatures(X[:4], tasks, texts, num_inducing=2)
    phi = features.of(np.arange(4))
    assert phi.shape == (4, features.num_features) == (4, 1 + 2 + 2 * 4 + 2)
    assert phi[:, 0].tolist() == [1.0] * 4
    assert phi[:, 1:3].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    sizes = phi[:, 3:11].reshape(4, 2, 4)
    assert np.all(sizes[0, 1] == 0) and np.all(sizes[1, 0] == 0)  # each task has sizes of its own
    assert sizes[[0, 2], 0].mean(0) == pytest.approx(0) and sizes[2, 0, 0] == pytest.approx(1)
    prior = features.prior_precision(task=2.0, size=3.0, kernel=4.0)
    assert prior.tolist() == [1e-6, 2, 2, *[3] * 8, 4, 4]


def held_out_error(predictor, p, rng):
    """Root mean squared error on the last 20 prompts after the first 40 were seen."""
    for start in range(0, 40, 10):
        rows = np.arange(start, start + 10)
        predictor.observe([IDS[r] for r in rows], rng.binomial(16, p[rows]), np.full(10, 16))
    return float(np.sqrt(np.mean((predictor.predict(IDS[40:])[0] - p[40:]) ** 2)))


@pytest.mark.parametrize("build", [Ridge, NoisyGP, Hybrid], ids=lambda build: build.__name__)
def test_prompts_never_seen_are_predicted_from_their_neighbours(build):
    p = 1 / (1 + np.exp(-2.5 * X[:, 0]))
    predictor = build(IDS, X, penalty=1.0) if build is Ridge else build(IDS, X)
    assert held_out_error(predictor, p, np.random.default_rng(2)) < 0.7 * np.std(p)


def test_hybrid_trusts_features_where_they_tell_and_history_where_they_do_not():
    rng = np.random.default_rng(3)
    told, untold = 1 / (1 + np.exp(-3 * X[:, 0])), rng.permutation(1 / (1 + np.exp(-3 * X[:, 0])))
    weights = []
    for p in (told, untold):
        predictor = Hybrid(IDS, X)
        held_out_error(predictor, p, rng)
        weights.append(predictor.metrics()["unseen_variance_slope"])
        for _ in range(6):
            predictor.observe(IDS, rng.binomial(8, p), np.full(60, 8))
        assert np.abs(predictor.predict(IDS)[0] - p).mean() < 0.09  # history tells in any case
    assert weights[0] > weights[1]


def test_hybrid_learns_how_fast_the_policy_drifts():
    rng = np.random.default_rng(4)
    fast, still = Hybrid(IDS, X), Hybrid(IDS, X)
    p = rng.uniform(0.1, 0.9, 60)
    for _ in range(25):
        fast.observe(IDS, rng.binomial(8, rng.uniform(0.1, 0.9, 60)), np.full(60, 8))
        still.observe(IDS, rng.binomial(8, p), np.full(60, 8))
    assert fast.metrics()["decay"] < 0.75 < still.metrics()["decay"]


def test_tasks_are_told_apart():
    tasks = ["easy", "hard"] * 30
    p = np.where(np.arange(60) % 2 == 0, 0.95, 0.05)
    predictor = Hybrid(IDS, np.ones((60, 2)), tasks)
    assert held_out_error(predictor, p, np.random.default_rng(5)) < 0.1


@pytest.mark.parametrize("build", [NoisyGP, Hybrid], ids=lambda build: build.__name__)
def test_the_same_code_runs_on_arrays_that_live_elsewhere(build):
    host, device = build(IDS, X), build(IDS, X, xp=DeviceNamespace())
    for predictor in (host, device):
        held_out_error(predictor, 1 / (1 + np.exp(-X[:, 0])), np.random.default_rng(6))
    for one, other in zip(host.predict(IDS), device.predict(IDS), strict=True):
        assert one == pytest.approx(other, rel=1e-6)
