"""Statistics of success counts that the tables and plots share.

Legend: s successes, t trials, p predicted success probability, z normal quantile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vipray.arrays import FloatArray, IntArray

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
LOG_LOSS_CLIP = 1e-6  # keeps the loss finite where a prediction of exactly 0 or 1 was wrong


def wilson_interval(rate: npt.ArrayLike, trials: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Compute the 95 % score interval of a success rate (Wilson 1927; Brown, Cai, DasGupta 2001 eq. 4).

    Args:
        rate: any shape, in [0, 1].
        trials: same shape, >= 0, not necessarily whole; NaN bounds where it is 0.

    >>> low, high = wilson_interval(0.5, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.237, 0.763)
    """
    p, t = np.asarray(rate, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    t = np.where(t > 0, t, np.nan)
    centre = (p + Z_95**2 / (2 * t)) / (1 + Z_95**2 / t)
    half = Z_95 / (1 + Z_95**2 / t) * np.sqrt(p * (1 - p) / t + Z_95**2 / (4 * t**2))
    return np.clip(centre - half, 0.0, p), np.clip(centre + half, p, 1.0)


@dataclass(frozen=True)
class Proportion:
    """Successes among trials, pooled over rollouts."""

    successes: int
    trials: int

    @property
    def rate(self) -> float:
        """In [0, 1], NaN without trials."""
        return self.successes / self.trials if self.trials else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate for the sampling of rollouts."""
        low, high = wilson_interval(self.rate, self.trials)
        return float(low), float(high)


@dataclass(frozen=True)
class PredictionError:
    """How far predictions were from outcomes.

    Attributes:
        num_visits: (step, prompt) pairs with at least one trial.
        mae: mean over visits of `|p - s / t|`; never 0 on average, since `s / t` is itself a noisy rate.
        log_loss: binomial negative log-likelihood in nats a rollout.
    """

    num_visits: int
    mae: float
    log_loss: float


def prediction_error(success_prob: FloatArray, successes: IntArray, trials: IntArray) -> PredictionError:
    """Score predictions against outcomes.

    Args:
        success_prob: [R] in [0, 1].
        successes: [R] in [0, trials].
        trials: [R] >= 0; rows without trials do not count.
    """
    seen = trials > 0
    p, s, t = success_prob[seen], successes[seen], trials[seen]
    if not len(p):
        return PredictionError(0, float("nan"), float("nan"))
    clipped = np.clip(p, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
    log_likelihood = s * np.log(clipped) + (t - s) * np.log1p(-clipped)
    return PredictionError(len(p), float(np.abs(p - s / t).mean()), float(-log_likelihood.sum() / t.sum()))


def batch_mean(step: IntArray, successes: IntArray, trials: IntArray) -> FloatArray:
    """Give every row the success rate of its step, [R], pooled over rollouts; NaN for a step without trials."""
    _, index = np.unique(step, return_inverse=True)
    s, t = np.bincount(index, weights=successes), np.bincount(index, weights=trials)
    return np.divide(s, t, out=np.full(len(s), np.nan), where=t > 0)[index]


@dataclass(frozen=True)
class CalibrationBin:
    """Visits whose predictions are alike.

    Attributes:
        num_visits: (step, prompt) pairs with at least one trial.
        success_prob: mean prediction, weighted by trials.
        rate: successes over trials.
        low, high: 95 % interval of `rate` that allows for prompts of the bin being unequally hard.
    """

    num_visits: int
    success_prob: float
    rate: float
    low: float
    high: float


def calibration_bins(
    success_prob: FloatArray, successes: IntArray, trials: IntArray, num_bins: int = 10
) -> list[CalibrationBin]:
    """Group visits into `num_bins` equal ranges of the prediction, [R] each; empty ranges are left out."""
    seen = trials > 0
    p, s, t = success_prob[seen], successes[seen], trials[seen]
    index = np.minimum((p * num_bins).astype(np.int64), num_bins - 1)
    return [_calibration_bin(p[index == b], s[index == b], t[index == b]) for b in np.unique(index)]


def _calibration_bin(p: FloatArray, s: IntArray, t: IntArray) -> CalibrationBin:
    rate = s.sum() / t.sum()
    low, high = wilson_interval(rate, t.sum() / _design_effect(s, t))
    return CalibrationBin(len(p), float(np.average(p, weights=t)), float(rate), float(low), float(high))


def _design_effect(s: IntArray, t: IntArray) -> float:
    """Variance of the pooled rate with prompts as clusters, over its binomial variance; at least 1.

    Rollouts of one prompt share its success probability, so they tell less about a bin than as many rollouts of
    as many prompts (ratio estimator, Cochran 1977 eq. 6.13).
    """
    m, rate = len(s), s.sum() / t.sum()
    binomial = rate * (1 - rate) / t.sum()
    if m < 2 or binomial == 0:
        return 1.0
    clustered = m / (m - 1) * np.sum((s - rate * t) ** 2) / t.sum() ** 2
    return max(1.0, float(clustered / binomial))


def trailing_mean(index: IntArray, values: FloatArray, num_steps: int, window: int) -> FloatArray:
    """Average values over the last `window` steps, [num_steps]; NaN where those steps hold no value.

    Args:
        index: [R] position of each value's step, in [0, num_steps).
        values: [R]; NaN does not count.
        num_steps: steps of the run.
        window: >= 1 steps.
    """
    kept = ~np.isnan(values)
    sums = np.bincount(index[kept], weights=values[kept], minlength=num_steps)
    counts = np.bincount(index[kept], minlength=num_steps)
    first = np.maximum(np.arange(num_steps) + 1 - window, 0)
    total = np.concatenate([[0.0], np.cumsum(sums)])
    count = np.concatenate([[0], np.cumsum(counts)])
    window_sum, window_count = total[1:] - total[first], count[1:] - count[first]
    return np.divide(window_sum, window_count, out=np.full(num_steps, np.nan), where=window_count > 0)
