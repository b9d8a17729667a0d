"""The last observed success rate, clipped: what the paper's update makes of a prompt that was visited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.prompt_index import PromptIndex


class LastRate:
    """Baseline that believes the last group and forgets the rest.

    Args:
        prompt_ids: Q distinct prompts.
        clip: rates are clipped to [clip, 1 - clip].
        prior_success_prob: prediction for a prompt that was never seen.
    """

    def __init__(self, prompt_ids: Sequence[str], *, clip: float, prior_success_prob: float = 0.5) -> None:
        self._index = PromptIndex(prompt_ids)
        self._clip = clip
        self._rate = np.full(len(prompt_ids), prior_success_prob)

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] of a point mass at it."""
        p = self._rate[self._index.rows(prompt_ids)]
        return p, 4.0 * p * (1.0 - p)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Take the rates of the [B] prompts that were tried."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        self._rate[rows] = np.clip(wins / (wins + losses), self._clip, 1.0 - self._clip)

    def state_dict(self) -> dict[str, Any]:
        """Rates and the fingerprint of the prompts."""
        return {"fingerprint": self._index.fingerprint, "rate": self._rate.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._rate = np.array(state["rate"])

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}
