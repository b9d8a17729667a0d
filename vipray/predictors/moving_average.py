"""The pooled success rate of a prompt's last visits, with one pseudo-rollout of prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.moments import beta_moments
from vipray.predictors.prompt_index import PromptIndex


class MovingAverage:
    """Baseline over a window of visits.

    Args:
        prompt_ids: Q distinct prompts.
        window: visits that are pooled.
    """

    def __init__(self, prompt_ids: Sequence[str], *, window: int) -> None:
        self._index = PromptIndex(prompt_ids)
        self._successes = np.zeros((window, len(prompt_ids)))
        self._failures = np.zeros((window, len(prompt_ids)))

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] under Jeffreys' posterior of the pooled window."""
        rows = self._index.rows(prompt_ids)
        return beta_moments(self._successes[:, rows].sum(0) + 0.5, self._failures[:, rows].sum(0) + 0.5)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Move the window of the [B] prompts that were tried."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        for window, newest in ((self._successes, wins), (self._failures, losses)):
            window[1:, rows] = window[:-1, rows]
            window[0, rows] = newest

    def state_dict(self) -> dict[str, Any]:
        """Windows and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "successes": self._successes.copy(),
            "failures": self._failures.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._successes, self._failures = np.array(state["successes"]), np.array(state["failures"])

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}
