"""What one more rollout is worth, policy by policy.

Each function takes a batch and the counts n = L, …, U - 1, and returns [B, U - L]: the worth of rollout n + 1 of each
prompt. All of them fall along each row, so that giving every rollout to the largest gain maximises their sum exactly.

Legend: p success probability, a gradient variance, w prompt weight, g the estimator's variance factor.
"""

from __future__ import annotations

import numpy as np

from vipray.allocation.objectives import MIN_SUCCESS_PROB
from vipray.allocation.predicted_batch import PredictedBatch
from vipray.arrays import FloatArray, IntArray

_MIN_GRADIENT_VARIANCE = 4.0 * MIN_SUCCESS_PROB * (1.0 - MIN_SUCCESS_PROB)


def uniform(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Equal counts: every prompt has the same share."""
    return _in_proportion(np.ones(len(batch)), n)


def vip(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Least gradient variance of the weighted loss: `w² a (g(n) - g(n + 1))` (arXiv:2602.01601 section 5.2)."""
    return (batch.prompt_weight**2 * batch.gradient_variance)[:, None] * batch.estimator.gain(n)[None, :]


def log_success(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Least gradient variance of the mean log success, whatever the loss: `a / p² (g(n) - g(n + 1))`, p >= 0.05."""
    p = np.maximum(batch.success_prob, MIN_SUCCESS_PROB)
    return (batch.gradient_variance / p**2)[:, None] * batch.estimator.gain(n)[None, :]


def inverse_accuracy(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Counts in proportion to `1 / p`, with p bounded below at 0.05."""
    return _in_proportion(1.0 / np.maximum(batch.success_prob, MIN_SUCCESS_PROB), n)


def inverse_variance(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Counts in proportion to `1 / a`, with a bounded below at its value for p = 0.05."""
    return _in_proportion(1.0 / np.maximum(batch.gradient_variance, _MIN_GRADIENT_VARIANCE), n)


def knapsack(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Value of a group as in arXiv:2509.25849: `(1 - pⁿ - (1 - p)ⁿ) p (1 - p)²`.

    The first factor is the probability that the group holds both outcomes, the second stands for what the policy
    then learns. Implemented is this value function at the predicted p. The paper's own treatment of prompts that
    were never or always solved is not: their value is zero, and they share only what nobody has a use for.
    """
    p = batch.success_prob
    return (p * (1.0 - p) ** 2)[:, None] * _both_outcomes(p, np.zeros_like(p), n)


def mixed_group(batch: PredictedBatch, n: IntArray) -> FloatArray:
    """Expected number of groups that hold both outcomes: `1 - E[pⁿ] - E[(1 - p)ⁿ]` under a Beta posterior.

    The posterior matches the two moments of the prediction, `E[p] = success_prob` and `E[4 p (1 - p)] = a`. It is a
    point where `a` is all that the mean allows, and rests on 0 and 1 alone where `a` is zero.
    """
    p = batch.success_prob
    at_a_point = 4.0 * p * (1.0 - p)
    share = np.divide(batch.gradient_variance, at_a_point, out=np.ones_like(p), where=at_a_point > 0.0)
    return _both_outcomes(p, np.clip(1.0 - share, 0.0, 1.0), n)


def _in_proportion(weight: FloatArray, n: IntArray) -> FloatArray:
    """Counts in proportion to `weight`, by Huntington and Hill's apportionment.

    It minimises `Σ weight² / n`, whose optimum over the real numbers is n ∝ weight; rollout n + 1 takes
    `weight² / (n (n + 1))` off that sum.
    """
    return weight[:, None] ** 2 / (n * (n + 1))[None, :]


def _both_outcomes(p: FloatArray, correlation: FloatArray, n: IntArray) -> FloatArray:
    """[B, U - L] probability that rollout n + 1 is the first with the other outcome: `E[pⁿ (1 - p) + (1 - p)ⁿ p]`."""
    return _first_failure(p, correlation, n) + _first_failure(1.0 - p, correlation, n)


def _first_failure(p: FloatArray, correlation: FloatArray, n: IntArray) -> FloatArray:
    """[B, U - L] probability of n successes and then a failure, `E[pⁿ (1 - p)]`, for p from a Beta(α, β).

    Given i successes the next draw succeeds with probability (α + i) / (α + β + i). In terms of the mean p and the
    correlation ρ = 1 / (α + β + 1) of two draws that is `(p (1 - ρ) + ρ i) / (1 - ρ + ρ i)`, which has both limits:
    p at ρ = 0, a point, and 1 at ρ = 1. A running product keeps the gains falling to the last bit.
    """
    if not n.size:
        return np.empty((len(p), 0))
    rho = correlation[:, None]
    seen = np.arange(1, n[-1] + 1)[None, :]  # i
    total = (1.0 - rho) + rho * seen
    again = (p[:, None] * (1.0 - rho) + rho * seen) / total
    streak = np.cumprod(np.concatenate([p[:, None], again[:, :-1]], axis=1), axis=1)  # n successes in column n - 1
    fails = ((1.0 - p)[:, None] * (1.0 - rho)) / total
    return (streak * fails)[:, n - 1]
