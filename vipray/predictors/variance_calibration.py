"""Learns how far predicted gradient variances can be trusted, from those that were predicted before.

    E[v | x] = v̄ + β (x - x̄),     β = Σ (x - x̄)(v - v̄) / (Σ (x - x̄)² + λ)

x is what was predicted, v = 4 s f / (n (n - 1)) an unbiased estimate of 4 p (1 - p) from the group that followed. A
prediction of p can be right on average and still say little about p (1 - p): where success is close to all or nothing
for reasons that features do not see, prompts of predicted p = 0.1 and p = 0.5 have much the same variance. The slope is
shrunk to 0, which stands for uniform allocation, and earns its way up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vipray.arrays import FloatArray

_SHRINKAGE = 1.0  # λ: about the noise of v (0.25) over the variance that β has before anything is seen (0.25)
_FLOOR = 0.05  # of the mean: a prompt is never written off


class VarianceCalibration:
    """Linear recalibration of predicted gradient variances; sums fade by a half-life in observations of steps."""

    def __init__(self, half_life: float) -> None:
        self._decay = 0.5 ** (1.0 / half_life)
        self._sums = np.zeros(5)  # weight, x, v, x², x v

    @property
    def slope(self) -> float:
        """β in [0, 1]."""
        n, x, v, xx, xv = self._sums
        if not n:
            return 0.0
        return float(np.clip((xv - x * v / n) / (xx - x * x / n + _SHRINKAGE), 0.0, 1.0))

    def observe(self, predicted: FloatArray, successes: FloatArray, failures: FloatArray) -> None:
        """Learn from [B] predictions and the groups that followed; groups of one say nothing."""
        n = successes + failures
        keep = n >= 2
        x, n = predicted[keep], n[keep]
        v = 4.0 * successes[keep] * failures[keep] / (n * (n - 1.0))
        self._sums = self._decay * self._sums + np.array([len(x), x.sum(), v.sum(), (x * x).sum(), (x * v).sum()])

    def apply(self, predicted: FloatArray) -> FloatArray:
        """Calibrated variances [B] for predicted ones."""
        n, x, v, *_ = self._sums
        if not n:
            return np.full_like(predicted, predicted.mean()) if len(predicted) else predicted
        mean = max(v / n, 1e-3)
        return np.clip(mean + self.slope * (predicted - x / n), _FLOOR * mean, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"sums": self._sums.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        self._sums = np.array(state["sums"])
