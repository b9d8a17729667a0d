"""How long a prompt's completions will be, learned from those that it had.

    prompt   e_q = (Σ tokens of q + K m_t) / (rollouts of q + K)
    task     m_t = (Σ tokens of t + K m)   / (rollouts of t + K)
    all      m   = (Σ tokens + K prior)    / (rollouts + K)

Each level is shrunk towards the one above it, so that a prompt that nobody has seen is expected to be as long as its
task's. Evidence fades with the number of observations, because training changes how long answers are. A completion
that was cut at `sampling.max_tokens` counts with the tokens that it has: that is what it costs.

Legend: q prompt, t task, Q prompts, T tasks, K pseudo-rollouts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray

_PSEUDO_ROLLOUTS = 2.0  # K: two rollouts say as much of a prompt as its task does
_HALF_LIFE = 64.0  # observations after which evidence weighs half: prompts come back after an epoch, not at once


class LengthModel:
    """Expected completion tokens by prompt.

    Args:
        task_of: task label by prompt id, of all Q prompts.
        prior_tokens: expected length before anything was seen, > 0.
        half_life: calls of `observe` after which evidence weighs half.

    Raises:
        ValueError: a prior or a half-life that is not positive.
    """

    def __init__(self, task_of: Mapping[str, str], *, prior_tokens: float, half_life: float = _HALF_LIFE) -> None:
        if not prior_tokens > 0 or not half_life > 0:
            raise ValueError(f"prior_tokens and half_life must be > 0, got {prior_tokens} and {half_life}")
        self._row = {prompt_id: row for row, prompt_id in enumerate(task_of)}
        tasks, self._task = np.unique(list(task_of.values()), return_inverse=True)
        self._prior_tokens = prior_tokens
        self._fade = 0.5 ** (1.0 / half_life)
        self._prompts = _Sums(len(self._row))
        self._tasks = _Sums(len(tasks))
        self._all = _Sums(1)
        self._now = 0
        self._error = 0.0
        self._observed = 0.0
        labels = "\n".join(f"{prompt_id}\t{task}" for prompt_id, task in task_of.items())
        self._fingerprint = hashlib.sha256(labels.encode()).hexdigest()

    def expect(self, prompt_ids: Sequence[str]) -> FloatArray:
        """[B] expected tokens, > 0. Raises `ValueError` for a prompt that is not known."""
        return self._expect_rows(self._rows(prompt_ids))

    def observe(self, prompt_ids: Sequence[str], num_tokens: Sequence[float] | IntArray) -> None:
        """Take in the lengths of N rollouts, one entry each; a prompt may come any number of times.

        Raises:
            ValueError: lengths that are negative or not one for each rollout, or a prompt that is not known.
        """
        tokens = np.asarray(num_tokens, dtype=np.float64)
        rows = self._rows(prompt_ids)
        if tokens.shape != rows.shape or np.any(tokens < 0):
            raise ValueError(f"expected {len(rows)} lengths >= 0, got {tokens.tolist()}")
        if not len(rows):
            return
        self._error = float(np.abs(self._expect_rows(rows) - tokens).mean())
        self._observed = float(tokens.mean())
        self._now += 1
        for sums, where in self._levels(rows):
            sums.add(where, tokens, self._now, self._fade)

    def state_dict(self) -> dict[str, Any]:
        """All sums, and the fingerprint of the prompts."""
        levels = {"prompts": self._prompts, "tasks": self._tasks, "all": self._all}
        return {
            "fingerprint": self._fingerprint,
            "now": self._now,
            **{name: sums.state_dict() for name, sums in levels.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Raises `ValueError` for one of other prompts or tasks."""
        if state["fingerprint"] != self._fingerprint:
            raise ValueError("these lengths belong to other prompts: resume with those that they were learned on")
        self._now = int(state["now"])
        for name, sums in (("prompts", self._prompts), ("tasks", self._tasks), ("all", self._all)):
            sums.load_state_dict(state[name])

    def metrics(self) -> dict[str, float]:
        """Mean length of the last observation, and the mean absolute error of what was expected of it before."""
        return {"tokens": self._observed, "absolute_error": self._error}

    def _rows(self, prompt_ids: Sequence[str]) -> IntArray:
        unknown = [prompt_id for prompt_id in prompt_ids if prompt_id not in self._row]
        if unknown:
            raise ValueError(f"{len(unknown)} prompt ids have no known task, the first is {unknown[0]!r}")
        return np.array([self._row[prompt_id] for prompt_id in prompt_ids], dtype=np.int64)

    def _levels(self, rows: IntArray) -> tuple[tuple[_Sums, IntArray], ...]:
        """From all over the task to the prompt, with the rows of each."""
        return (self._all, np.zeros_like(rows)), (self._tasks, self._task[rows]), (self._prompts, rows)

    def _expect_rows(self, rows: IntArray) -> FloatArray:
        expected = np.full(len(rows), self._prior_tokens)
        for sums, where in self._levels(rows):
            tokens, rollouts = sums.at(where, self._now, self._fade)
            expected = (tokens + _PSEUDO_ROLLOUTS * expected) / (rollouts + _PSEUDO_ROLLOUTS)
        return expected


class _Sums:
    """Faded sums of tokens and rollouts of `size` things."""

    def __init__(self, size: int) -> None:
        self._tokens, self._rollouts = np.zeros(size), np.zeros(size)
        self._seen_at = np.zeros(size, dtype=np.int64)

    def at(self, rows: IntArray, now: int, fade: float) -> tuple[FloatArray, FloatArray]:
        """Tokens and rollouts as they weigh now."""
        factor = fade ** (now - self._seen_at[rows])
        return self._tokens[rows] * factor, self._rollouts[rows] * factor

    def add(self, rows: IntArray, tokens: FloatArray, now: int, fade: float) -> None:
        """Add one rollout for each row; rows may repeat."""
        touched = np.unique(rows)
        self._tokens[touched], self._rollouts[touched] = self.at(touched, now, fade)
        self._seen_at[touched] = now
        np.add.at(self._tokens, rows, tokens)
        np.add.at(self._rollouts, rows, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens.copy(),
            "rollouts": self._rollouts.copy(),
            "seen_at": self._seen_at.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tokens, self._rollouts = np.array(state["tokens"]), np.array(state["rollouts"])
        self._seen_at = np.array(state["seen_at"])
