"""The learner's ranks as one: every call goes to all of them alike, and the first error is the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.generator_pool import Publication
from actors.waiting import wait_for
from vipray.config import CheckpointConfig
from vipray.records import Allocation


class LearnerGroup:
    """Handles of all ranks.

    Args:
        ranks: in order.
        num_chunks: chunks of a publication that each rank gives.
        step_timeout_s: longest wait for a step, or for a copy of the state.
        publish_timeout_s: longest wait for a publication.
    """

    def __init__(
        self, ranks: Sequence[Any], num_chunks: int, *, step_timeout_s: float, publish_timeout_s: float
    ) -> None:
        self._ranks = ranks
        self._num_chunks = num_chunks
        self._step_timeout_s = step_timeout_s
        self._publish_timeout_s = publish_timeout_s

    def start_training(self, allocation: Allocation, references: Sequence[Any]) -> list[Any]:
        """Begin a step; return the calls, for `trained`."""
        return [rank.train.remote(allocation, *references) for rank in self._ranks]

    async def trained(self, calls: list[Any], step: int) -> tuple[dict[str, float], float]:
        """Wait for a step; return its metrics, and how long the first rank worked on it, in seconds."""
        (metrics, span), *_ = await wait_for(_all(calls), self._step_timeout_s, f"the learner's step {step}")
        return metrics, span.duration_s

    async def publish(self, version: int) -> Publication:
        """Return a version once every rank has published the rows that it holds.

        The chunks are return values of the ranks' method, so that the driver owns them and they outlive a rank.
        """
        num_returns = 1 + self._num_chunks
        ranks = [rank.publish.options(num_returns=num_returns).remote(version) for rank in self._ranks]
        manifests = [references[-1] for references in ranks]  # the last that a rank yields, and small
        await wait_for(_all(manifests), self._publish_timeout_s, f"the learner to publish version {version}")
        chunks = [chunk for group in zip(*(references[:-1] for references in ranks), strict=True) for chunk in group]
        return Publication(version, manifests[0], chunks)

    async def save(self, root: Path, step: int, keep_last: int) -> None:
        """Wait until every rank has copied its state after `step` steps; it is written behind the next step."""
        calls = [rank.save.remote(str(root.absolute()), step, keep_last) for rank in self._ranks]
        await wait_for(_all(calls), self._step_timeout_s, f"the learner to copy its state after step {step}")

    async def finish_saving(self) -> None:
        """Wait for the last checkpoint to be complete."""
        calls = [rank.finish_saving.remote() for rank in self._ranks]
        await wait_for(_all(calls), self._step_timeout_s, "the last checkpoint to be complete")


def is_checkpoint_due(config: CheckpointConfig, step: int, num_steps: int) -> bool:
    """Whether a checkpoint is saved after `step` of `num_steps` steps: at the end in any case.

    >>> [step for step in range(1, 8) if is_checkpoint_due(CheckpointConfig(every_steps=3), step, 7)]
    [3, 6, 7]
    """
    return config.every_steps > 0 and (step % config.every_steps == 0 or step == num_steps)


async def _all(references: list[Any]) -> list[Any]:
    return await asyncio.gather(*references)
