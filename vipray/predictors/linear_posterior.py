"""Bayesian linear regression with one observation a prompt, which later ones replace.

    y_q = φ_q · w + ε_q,   w_j ~ N(0, 1 / α_j),   ε_q ~ N(0, 1 / β_q)
    w | y ~ N(A⁻¹ b, A⁻¹),   A = Σ_q β_q φ_q φ_qᵀ + diag(α),   b = Σ_q β_q y_q φ_q

(Bishop 2006, eq. 3.50 to 3.54.) The sums are kept; replacing the observations of a batch costs B D², and different
priors α can be tried on the same sums. Nothing grows with the number of prompts.

Legend: D features, B prompts of a batch, φ features, α prior precisions, β noise precisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray
from vipray.predictors.array_namespace import to_numpy


@dataclass(frozen=True)
class WeightPosterior:
    """Posterior of the weights: mean [D] and the inverse Cholesky factor [D, D] of their precision."""

    mean: Any
    inverse_factor: Any

    def predict(self, phi: Any) -> tuple[FloatArray, FloatArray]:
        """Mean [B] and variance [B] of φ · w for features [B, D]."""
        spread = phi @ self.inverse_factor.T
        return to_numpy(phi @ self.mean), to_numpy((spread**2).sum(axis=1))


class LinearPosterior:
    """Sums of a Bayesian linear regression on D features, on NumPy or CuPy."""

    def __init__(self, num_features: int, xp: ModuleType = np) -> None:
        self._xp: Any = xp
        self._precision = xp.zeros((num_features, num_features))
        self._shift = xp.zeros(num_features)

    def replace(self, phi: Any, old: tuple[FloatArray, FloatArray], new: tuple[FloatArray, FloatArray]) -> None:
        """Exchange the observations of a batch.

        Args:
            phi: [B, D] features.
            old: values [B] and precisions [B] that were added before; precision 0 where there were none.
            new: values [B] and precisions [B] that take their place.
        """
        xp = self._xp
        (old_y, old_beta), (new_y, new_beta) = old, new
        self._precision = self._precision + phi.T @ (phi * xp.asarray(new_beta - old_beta)[:, None])
        self._shift = self._shift + phi.T @ xp.asarray(new_beta * new_y - old_beta * old_y)

    def solve(self, prior_precision: FloatArray) -> WeightPosterior:
        """Posterior under prior precisions [D] > 0."""
        inverse_factor = self._xp.linalg.solve(self._factor(prior_precision), self._xp.eye(len(prior_precision)))
        return WeightPosterior(inverse_factor.T @ (inverse_factor @ self._shift), inverse_factor)

    def mean(self, prior_precision: FloatArray) -> Any:
        """Posterior mean [D] of the weights alone, at half the cost."""
        factor = self._factor(prior_precision)
        return self._xp.linalg.solve(factor.T, self._xp.linalg.solve(factor, self._shift))

    def fade(self, factor: float) -> None:
        """Let the information of everything that was observed shrink by a factor in (0, 1]: the weights may drift."""
        self._precision = self._precision * factor
        self._shift = self._shift * factor

    def state_dict(self) -> dict[str, Any]:
        """The two sums."""
        return {"precision": to_numpy(self._precision).copy(), "shift": to_numpy(self._shift).copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        self._precision = self._xp.asarray(state["precision"])
        self._shift = self._xp.asarray(state["shift"])

    def _factor(self, prior_precision: FloatArray) -> Any:
        """Cholesky factor of the posterior precision A."""
        return self._xp.linalg.cholesky(self._precision + self._xp.diag(self._xp.asarray(prior_precision)))
