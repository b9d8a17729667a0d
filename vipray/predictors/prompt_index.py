"""Rows of prompts, and what every predictor checks of its input."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray


class PromptIndex:
    """Row of each prompt id, and a fingerprint of them all.

    Raises:
        ValueError: the ids are not distinct.
    """

    def __init__(self, prompt_ids: Sequence[str]) -> None:
        self._row = {prompt_id: row for row, prompt_id in enumerate(prompt_ids)}
        if len(self._row) != len(prompt_ids):
            raise ValueError("prompt ids must be distinct")
        self.fingerprint = hashlib.sha256("\n".join(prompt_ids).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._row)

    def rows(self, prompt_ids: Sequence[str]) -> IntArray:
        """[B] rows. Raises `ValueError` for a prompt that is not known."""
        unknown = [prompt_id for prompt_id in prompt_ids if prompt_id not in self._row]
        if unknown:
            raise ValueError(f"{len(unknown)} prompt ids are unknown to the predictor, the first is {unknown[0]!r}")
        return np.array([self._row[prompt_id] for prompt_id in prompt_ids], dtype=np.int64)

    def evidence(
        self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Rows, successes and failures of the prompts that were tried at all.

        Raises:
            ValueError: successes outside [0, trials], a prompt that is not known, or one that comes twice.
        """
        successes, trials = np.asarray(successes), np.asarray(trials)
        if np.any(successes < 0) or np.any(successes > trials):
            raise ValueError(f"successes must lie in [0, trials], got {successes.tolist()} of {trials.tolist()}")
        rows = self.rows(prompt_ids)
        if len(np.unique(rows)) != len(rows):
            raise ValueError("a prompt comes twice in one observation: sum its successes and trials first")
        seen = trials > 0
        return rows[seen], successes[seen].astype(np.float64), (trials - successes)[seen].astype(np.float64)

    def check_state(self, state: dict[str, Any], own: dict[str, Any]) -> None:
        """Raise `ValueError` for the state of a predictor of other prompts, of another kind or of other sizes.

        Args:
            state: the state that is to be restored.
            own: the state of the predictor that is to take it, whose names and shapes it must have.
        """
        if state.get("fingerprint") != self.fingerprint:
            raise ValueError("this predictor state belongs to other prompts: resume with those that it was made on")
        theirs, ours = _shapes(state), _shapes(own)
        if theirs != ours:
            name = min(name for name in theirs | ours if theirs.get(name) != ours.get(name))
            raise ValueError(
                f"this predictor state belongs to another predictor.kind, or to other settings of it: {name} is "
                f"{theirs.get(name, 'missing')}, expected {ours.get(name, 'none')}; resume with those it was made with"
            )


def _shapes(state: dict[str, Any], prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Shape of every value of a state by dotted name; () for plain values."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            shapes |= _shapes(value, f"{prefix}{name}.")
        else:
            shapes[f"{prefix}{name}"] = np.shape(value)
    return shapes


def check_embeddings(prompt_ids: Sequence[str], embeddings: FloatArray) -> None:
    """Raise `ValueError` unless embeddings are finite and [Q, D], one row a prompt."""
    if embeddings.ndim != 2 or len(embeddings) != len(prompt_ids):
        raise ValueError(f"embeddings must be [{len(prompt_ids)}, D], one row a prompt, got {list(embeddings.shape)}")
    bad = ~np.isfinite(embeddings).all(axis=1)
    if bad.any():
        first = prompt_ids[int(np.argmax(bad))]
        raise ValueError(f"{int(bad.sum())} embeddings are not finite, the first is that of prompt {first!r}")
