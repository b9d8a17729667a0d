"""What an allocation is made from: the prediction for a batch, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vipray.allocation.estimators import ESTIMATORS, Estimator
from vipray.arrays import FloatArray


@dataclass(frozen=True)
class PredictedBatch:
    """B prompts before any of their rollouts.

    Attributes:
        success_prob: [B] predicted success probabilities in [0, 1].
        gradient_variance: [B] `E[4 p (1 - p)]` under the posterior, >= 0.
        prompt_weight: [B] weights of the prompts' terms in the loss, >= 0.
        estimator: the advantage estimator of the loss.
    """

    success_prob: FloatArray
    gradient_variance: FloatArray
    prompt_weight: FloatArray
    estimator: Estimator

    def __len__(self) -> int:
        return len(self.success_prob)


def predicted_batch(
    success_prob: FloatArray,
    *,
    estimator: str = "rloo",
    gradient_variance: FloatArray | None = None,
    prompt_weight: FloatArray | None = None,
) -> PredictedBatch:
    """Check a prediction and fill in what it leaves out: `4 p (1 - p)`, the variance at a point, and weights of 1.

    Raises:
        ValueError: with the numbers, for vectors of unequal length, probabilities outside [0, 1] or NaN, and
            variances or weights that are negative or not finite.
    """
    p = np.asarray(success_prob, dtype=np.float64)
    a = 4.0 * p * (1.0 - p) if gradient_variance is None else np.asarray(gradient_variance, dtype=np.float64)
    w = np.ones_like(p) if prompt_weight is None else np.asarray(prompt_weight, dtype=np.float64)
    if p.ndim != 1 or p.shape != a.shape or p.shape != w.shape or not p.size:
        raise ValueError(
            f"expected vectors of one length B >= 1: success_prob {p.shape}, gradient_variance {a.shape}, "
            f"prompt_weight {w.shape}"
        )
    inside = (p >= 0.0) & (p <= 1.0)
    if not inside.all():
        raise ValueError(f"success_prob must lie in [0, 1], got {p[~inside][0]}")
    for name, values in (("gradient_variance", a), ("prompt_weight", w)):
        good = np.isfinite(values) & (values >= 0.0)
        if not good.all():
            raise ValueError(f"{name} must be finite and >= 0, got {values[~good][0]}")
    return PredictedBatch(p, a, w, ESTIMATORS[estimator])


def check_bounds(batch: PredictedBatch, lower: int, upper: int) -> None:
    """Raise `ValueError` unless `lower` suits the batch's estimator and `upper` is not below it."""
    estimator = batch.estimator
    if lower < estimator.min_lower:
        raise ValueError(
            f"lower must be >= {estimator.min_lower} for {estimator.name} ({estimator.why_min_lower}), got {lower}"
        )
    if lower > upper:
        raise ValueError(f"the upper bound {upper} is below the lower bound {lower}")
