"""A Kalman filter for each prompt's logit.

    g_t = g_{t-1} + w,  w ~ N(0, process_noise)        ĝ_t = g_t + v,  v ~ N(0, r_t)

A group of s successes and f failures is one Gaussian observation of the logit, with the mean and variance that the
logit has under Beta(s + 1/2, f + 1/2): ĝ = ψ(s + ½) - ψ(f + ½), r = ψ'(s + ½) + ψ'(f + ½). Time is counted in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import digamma, polygamma

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.moments import logit_normal_moments
from vipray.predictors.prompt_index import PromptIndex


def logit_observation(successes: FloatArray, failures: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance [...] of the logit under Jeffreys' posterior of counts [...] >= 0."""
    s, f = successes + 0.5, failures + 0.5
    return digamma(s) - digamma(f), polygamma(1, s) + polygamma(1, f)


class Kalman:
    """Predictor that filters each prompt's logit by itself.

    Args:
        prompt_ids: Q distinct prompts.
        process_noise: variance that the logit gains a step.
        prior_variance: of the logit before anything is seen, around 0.
    """

    def __init__(self, prompt_ids: Sequence[str], *, process_noise: float, prior_variance: float = 4.0) -> None:
        self._index = PromptIndex(prompt_ids)
        self._mean = np.zeros(len(prompt_ids))
        self._variance = np.full(len(prompt_ids), prior_variance)
        self._seen_at = np.zeros(len(prompt_ids), dtype=np.int64)
        self._now = 0
        self._process_noise = process_noise

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] under the filtered posterior."""
        rows = self._index.rows(prompt_ids)
        return logit_normal_moments(self._mean[rows], self._variance_now(rows))

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Filter [B] successes and trials of a step."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        self._now += 1
        observed, noise = logit_observation(wins, losses)
        variance = self._variance_now(rows)
        gain = variance / (variance + noise)
        self._mean[rows] += gain * (observed - self._mean[rows])
        self._variance[rows] = (1.0 - gain) * variance
        self._seen_at[rows] = self._now

    def state_dict(self) -> dict[str, Any]:
        """Means, variances, when each prompt was last seen, the time, and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "mean": self._mean.copy(),
            "variance": self._variance.copy(),
            "seen_at": self._seen_at.copy(),
            "now": self._now,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._mean, self._variance = np.array(state["mean"]), np.array(state["variance"])
        self._seen_at, self._now = np.array(state["seen_at"]), int(state["now"])

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}

    def _variance_now(self, rows: IntArray) -> FloatArray:
        return self._variance[rows] + self._process_noise * (self._now - self._seen_at[rows])
