"""Discounted counts of a prompt's successes and failures: old evidence fades with time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray


class DiscountedCounts:
    """Successes and failures of Q prompts at H half-lives at once.

    Time is counted in calls of `add`, that is in training steps: it is the policy's training that makes evidence old,
    not the visits of the prompt.

    Args:
        num_prompts: Q.
        half_lives: H steps after which evidence weighs half; infinity keeps it for ever.
    """

    def __init__(self, num_prompts: int, half_lives: Sequence[float]) -> None:
        self._decay = np.array([0.5 ** (1.0 / half_life) for half_life in half_lives])
        self._successes = np.zeros((len(half_lives), num_prompts))
        self._failures = np.zeros((len(half_lives), num_prompts))
        self._seen_at = np.zeros(num_prompts, dtype=np.int64)
        self._now = 0

    def of(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Discounted successes and failures [H, B] as of now."""
        factor = self._decay[:, None] ** (self._now - self._seen_at[rows])[None, :]
        return self._successes[:, rows] * factor, self._failures[:, rows] * factor

    def add(self, rows: IntArray, successes: FloatArray, failures: FloatArray) -> None:
        """Let a step pass, then add what it brought."""
        self._now += 1
        old_successes, old_failures = self.of(rows)
        self._successes[:, rows] = old_successes + successes
        self._failures[:, rows] = old_failures + failures
        self._seen_at[rows] = self._now

    def state_dict(self) -> dict[str, Any]:
        """Counts, when each prompt was last seen, and the time."""
        return {
            "successes": self._successes.copy(),
            "failures": self._failures.copy(),
            "seen_at": self._seen_at.copy(),
            "now": self._now,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._successes = np.array(state["successes"])
        self._failures = np.array(state["failures"])
        self._seen_at = np.array(state["seen_at"])
        self._now = int(state["now"])
