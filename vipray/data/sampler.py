"""Which prompts a step trains on: epochs in shuffled order, no prompt twice in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class PromptSampler:
    """Draws batches of distinct prompts; every prompt comes once an epoch.

    A batch that reaches over the end of an epoch is filled from the next one with prompts that it does not hold yet.

    Args:
        prompt_ids: at least `batch_size` distinct prompts.
        batch_size: prompts a batch.
        seed: epoch e is shuffled by (seed, e).

    Raises:
        ValueError: fewer prompts than a batch needs.
    """

    def __init__(self, prompt_ids: Sequence[str], batch_size: int, seed: int) -> None:
        if not 0 < batch_size <= len(prompt_ids):
            raise ValueError(f"a batch of {batch_size} distinct prompts cannot be drawn from {len(prompt_ids)}")
        self._prompt_ids = list(prompt_ids)
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0
        self._queue: list[str] = self._shuffled(0)

    def next_batch(self) -> tuple[str, ...]:
        """Return the next `batch_size` distinct prompts."""
        if len(self._queue) < self._batch_size:
            self._epoch += 1
            self._queue += self._shuffled(self._epoch)
        batch = list(dict.fromkeys(self._queue))[: self._batch_size]  # distinct, in order
        for prompt_id in batch:
            self._queue.remove(prompt_id)
        return tuple(batch)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and what is left of it."""
        return {"epoch": self._epoch, "queue": list(self._queue), "seed": self._seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._epoch, self._queue, self._seed = state["epoch"], list(state["queue"]), state["seed"]

    def metrics(self) -> dict[str, float]:
        """Epochs begun so far, from 0."""
        return {"epoch": float(self._epoch)}

    def _shuffled(self, epoch: int) -> list[str]:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._prompt_ids))
        return [self._prompt_ids[row] for row in order]
