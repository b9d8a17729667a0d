"""A Beta posterior for each prompt by itself, from counts that fade with time.

    p_q ~ Beta(a0 + Σ_τ λ^(t-τ) s_τ,  b0 + Σ_τ λ^(t-τ) f_τ)

with s successes and f failures at step τ. Conjugate to the binomial; the discount stands for the policy's drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.counts import DiscountedCounts
from vipray.predictors.moments import beta_moments
from vipray.predictors.prompt_index import PromptIndex


class DiscountedBeta:
    """Predictor that shares nothing between prompts.

    Args:
        prompt_ids: Q distinct prompts.
        half_life: steps after which evidence weighs half.
        prior_successes: a0 > 0; 0.5 with `prior_failures` 0.5 is Jeffreys' prior.
        prior_failures: b0 > 0.
    """

    def __init__(
        self, prompt_ids: Sequence[str], *, half_life: float, prior_successes: float = 0.5, prior_failures: float = 0.5
    ) -> None:
        self._index = PromptIndex(prompt_ids)
        self._counts = DiscountedCounts(len(prompt_ids), [half_life])
        self._prior = (prior_successes, prior_failures)

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] under the posterior."""
        (successes,), (failures,) = self._counts.of(self._index.rows(prompt_ids))
        return beta_moments(self._prior[0] + successes, self._prior[1] + failures)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Add [B] successes and trials of a step."""
        self._counts.add(*self._index.evidence(prompt_ids, successes, trials))

    def state_dict(self) -> dict[str, Any]:
        """Counts and the fingerprint of the prompts."""
        return {"fingerprint": self._index.fingerprint, "counts": self._counts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._counts.load_state_dict(state["counts"])

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}
