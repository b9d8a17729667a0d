"""Which prompts a step trains on: epochs in shuffled order, no prompt twice in a batch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vipray.errors import ConfigError


class PromptSampler:
    """Draws batches of distinct prompts; every prompt comes once an epoch.

    A batch that reaches over the end of an epoch is filled from the next one with prompts that it does not hold yet;
    those passed over come first in the next batch. A batch costs time in proportion to its size, an epoch's order to
    the number of prompts.

    Args:
        prompt_ids: at least `batch_size` distinct prompts.
        batch_size: prompts a batch.
        seed: epoch e is shuffled by (seed, e).
        fingerprint: of the prompt set, to know it again when resuming; empty: one made from the ids.

    Raises:
        ValueError: fewer prompts than a batch needs, or an id that comes twice.
    """

    def __init__(self, prompt_ids: Sequence[str], batch_size: int, seed: int, fingerprint: str = "") -> None:
        if not 0 < batch_size <= len(prompt_ids):
            raise ValueError(f"a batch of {batch_size} distinct prompts cannot be drawn from {len(prompt_ids)}")
        self._prompt_ids = list(prompt_ids)
        self._known = set(self._prompt_ids)
        if len(self._known) != len(self._prompt_ids):
            raise ValueError("the ids of prompts must be distinct")
        self._batch_size = batch_size
        self._seed = seed
        self._fingerprint = fingerprint or _of_ids(self._prompt_ids)
        self._epoch = 0
        self._queue = deque(self._shuffled())

    def next_batch(self) -> tuple[str, ...]:
        """Return the next `batch_size` distinct prompts."""
        batch: dict[str, None] = {}
        passed_over: list[str] = []
        while len(batch) < self._batch_size:
            if not self._queue:
                self._epoch += 1
                self._queue.extend(self._shuffled())
            prompt_id = self._queue.popleft()
            if prompt_id in batch:
                passed_over.append(prompt_id)
            else:
                batch[prompt_id] = None
        self._queue.extendleft(reversed(passed_over))
        return tuple(batch)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and what is left of it: plain values that JSON can hold."""
        return {
            "epoch": self._epoch,
            "queue": list(self._queue),
            "seed": self._seed,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changed_prompts: bool = False) -> None:
        """Go on where `state` was taken; the batch size may be another one.

        Args:
            state: of a sampler over the same prompts.
            accept_changed_prompts: go on with other prompts too. What was left of the epoch and still exists comes
                first; prompts that are new join with the next epoch.

        Raises:
            ConfigError: the prompts have changed, and that is not accepted.
        """
        epoch, queue, seed = int(state["epoch"]), list(state["queue"]), int(state["seed"])
        has_changed = state["fingerprint"] != self._fingerprint
        if has_changed and not accept_changed_prompts:
            raise ConfigError(
                f"the prompt set has changed since the checkpoint (fingerprint {str(state['fingerprint'])[:12]}, now "
                f"{self._fingerprint[:12]}): restore the data, or go on with --accept-changed data "
                "(accept_changed_prompts=True)"
            )
        self._epoch, self._seed = epoch, seed
        self._queue = deque(prompt_id for prompt_id in queue if prompt_id in self._known)

    def metrics(self) -> dict[str, float]:
        """Epochs begun so far, from 0."""
        return {"epoch": float(self._epoch)}

    def _shuffled(self) -> list[str]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._prompt_ids))
        return [self._prompt_ids[row] for row in order.tolist()]


def _of_ids(prompt_ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(prompt_ids).encode()).hexdigest()
