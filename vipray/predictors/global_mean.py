"""One success rate for all prompts: under it every allocation is uniform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.prompt_index import PromptIndex


class GlobalMean:
    """Baseline that tells no prompt from another.

    Args:
        prompt_ids: Q distinct prompts.
        half_life: steps after which evidence weighs half.
    """

    def __init__(self, prompt_ids: Sequence[str], *, half_life: float) -> None:
        self._index = PromptIndex(prompt_ids)
        self._decay = 0.5 ** (1.0 / half_life)
        self._successes, self._failures = 0.5, 0.5

    @property
    def success_prob(self) -> float:
        """The mean rate of recent rollouts."""
        return self._successes / (self._successes + self._failures)

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B], the same for every prompt."""
        p = np.full(len(self._index.rows(prompt_ids)), self.success_prob)
        return p, 4.0 * p * (1.0 - p)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Add the rollouts of a step."""
        _, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        self._successes = self._decay * self._successes + float(wins.sum())
        self._failures = self._decay * self._failures + float(losses.sum())

    def state_dict(self) -> dict[str, Any]:
        """Pooled counts and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "successes": self._successes,
            "failures": self._failures,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._successes, self._failures = float(state["successes"]), float(state["failures"])

    def metrics(self) -> dict[str, float]:
        """The mean itself."""
        return {"success_prob": self.success_prob}
