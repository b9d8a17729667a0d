"""The learner's ranks as one: every call goes to all of them alike, and their loss is made good.

When a rank is lost, all are ended and new ones started. They load the newest checkpoint and train again on the batches
since, which are read back from the run's rollouts; then the call that failed is made again. The steps are functions of
their batches, so that nothing that was published before is contradicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, describe, fault_of
from actors.generator_pool import Publication
from actors.handles import Ranks
from actors.seat import Supervision, retrieved
from actors.waiting import wait_for
from vipray.checkpoints import complete_checkpoints, read_manifest
from vipray.config import CheckpointConfig
from vipray.errors import ObjectGoneError, WaitTimeoutError, summary_line
from vipray.records import Allocation, Recovery


@dataclass(frozen=True)
class LearnerTimeouts:
    """Longest waits, in seconds: for a step or a copy of the state, for a publication, for a new group."""

    step_s: float
    publish_s: float
    start_s: float


class LearnerGroup:
    """Handles of all ranks, and what a new group needs to get to where they are.

    Args:
        ranks: set up, and at the state of `first_step`.
        start: makes another group.
        supervision: how often, and how it is told.
        timeouts: of calls.
        checkpoint_root: where this run's checkpoints are.
        base: checkpoint that the run began from; None: the model itself.
        first_step: training steps that were taken when the run began.
        read_batch: reads a step's rollouts back from disk.
    """

    def __init__(
        self,
        ranks: Ranks,
        start: Callable[[], Awaitable[Ranks]],
        supervision: Supervision,
        timeouts: LearnerTimeouts,
        *,
        checkpoint_root: Path,
        base: Path | None,
        first_step: int,
        read_batch: Callable[[Allocation], Awaitable[Any]],
    ) -> None:
        self.ranks = ranks
        self.version = first_step  # training steps taken
        self.is_whole = True  # False while a new group comes up
        self._mending: asyncio.Task[None] | None = None
        self._saving: tuple[Ranks, int, int, Mapping[str, Any]] | None = None
        self._saved: set[int] = set()  # steps after which this run began a checkpoint
        self._lock = asyncio.Lock()  # one call at a time: two must not find the same loss
        self._start = start
        self._supervision = supervision
        self._timeouts = timeouts
        self._root = checkpoint_root
        self._base = base
        self._first_step = first_step
        self._read_batch = read_batch
        self._trained: dict[int, Allocation] = {}  # steps since the newest checkpoint

    async def load(self, folder: Path) -> int:
        """Go on from a checkpoint; return the training steps that were taken before it.

        Raises:
            RayTaskError: it is not complete, or of another model.
        """

        async def call(ranks: Ranks) -> int:
            return await self._loaded(ranks, folder)

        async with self._lock:
            step: int = await self._made(call)
        return step

    async def train(
        self, allocation: Allocation, references: Sequence[Any], on_started: Callable[[], None]
    ) -> tuple[dict[str, float], float]:
        """Train on a batch; return metrics, and how long the first rank worked on it, in seconds.

        Args:
            allocation: of the batch.
            references: its rows, in the order of the allocation.
            on_started: called once training is under way.

        Raises:
            ObjectGoneError: rows of the batch are lost.
        """
        what = f"the learner's step {allocation.step}"

        async def call(ranks: Ranks) -> tuple[dict[str, float], float]:
            calls = [rank.train.remote(allocation, *references) for rank in ranks.handles]
            on_started()
            (metrics, span), *_ = await wait_for(_all(calls), self._timeouts.step_s, what)
            return metrics, span.duration_s

        async with self._lock:
            result: tuple[dict[str, float], float] = await self._made(call)
            self._trained[allocation.step] = allocation
            self.version = allocation.step + 1
        return result

    async def publish(self) -> Publication:
        """Return the newest version once every rank has published the rows that it holds.

        The chunks are return values of the ranks' method, so that the driver owns them and they outlive a rank.
        """

        async def call(ranks: Ranks) -> Publication:
            num_returns, version = 1 + ranks.num_chunks, self.version
            references = [rank.publish.options(num_returns=num_returns).remote(version) for rank in ranks.handles]
            manifests = [mine[-1] for mine in references]  # the last that a rank yields, and small
            await wait_for(_all(manifests), self._timeouts.publish_s, f"the learner to publish version {version}")
            chunks = [chunk for group in zip(*(mine[:-1] for mine in references), strict=True) for chunk in group]
            return Publication(version, manifests[0], chunks)

        async with self._lock:
            publication: Publication = await self._made(call)
        return publication

    async def save(self, step: int, keep_last: int, facts: Mapping[str, Any]) -> str | None:
        """Wait until every rank has copied its state after `step` steps; it is written behind the next step.

        Returns:
            A line about the checkpoint before, where that could not be written.
        """

        async def call(ranks: Ranks) -> str | None:
            self._saving = ranks, step, keep_last, facts
            return await self._save(ranks, step, keep_last, facts)

        self._forget()
        self._saved.add(step)
        async with self._lock:
            problem: str | None = await self._made(call)
        return problem

    async def finish_saving(self) -> str | None:
        """Wait for the last checkpoint to be complete; return a line where it could not be written."""

        async def call(ranks: Ranks) -> str | None:
            if self._saving is not None and self._saving[0] is not ranks:  # those who wrote it are lost
                _, step, keep_last, facts = self._saving
                self._saving = ranks, step, keep_last, facts
                await self._save(ranks, step, keep_last, facts)
            calls = [rank.finish_saving.remote() for rank in ranks.handles]
            problems: list[str | None] = await wait_for(
                _all(calls), self._timeouts.step_s, "the last checkpoint to be complete"
            )
            return next((problem for problem in problems if problem is not None), None)

        async with self._lock:
            problem: str | None = await self._made(call)
        return problem

    def mend(self, ranks: Ranks, error: BaseException) -> None:
        """Build a group anew before a call finds out that a rank is gone; a call under way finds out by itself."""
        if self._mending is None or self._mending.done():
            self._mending = asyncio.create_task(self._mend(ranks, error))
            self._mending.add_done_callback(retrieved)

    def close(self) -> None:
        """Give up what nobody waits for."""
        if self._mending is not None:
            self._mending.cancel()

    async def _mend(self, ranks: Ranks, error: BaseException) -> None:
        async with self._lock:
            if self.ranks is ranks:
                await self._rebuild(error)

    async def _save(self, ranks: Ranks, step: int, keep_last: int, facts: Mapping[str, Any]) -> str | None:
        """Have ranks begin to write, unless it is all there: those before them may have died just after that."""
        if any(folder.name == f"step-{step:06d}" for folder in complete_checkpoints(self._root)):
            return None
        calls = [rank.save.remote(str(self._root), step, keep_last, dict(facts)) for rank in ranks.handles]
        what = f"the learner to copy its state after step {step}"
        problems: list[str | None] = await wait_for(_all(calls), self._timeouts.step_s, what)
        return next((problem for problem in problems if problem is not None), None)

    async def _made(self, call: Callable[[Ranks], Awaitable[Any]]) -> Any:
        """Make a call; where a rank is lost, make it again at a new group."""
        while True:
            ranks = self.ranks
            try:
                return await call(ranks)
            except (RayError, WaitTimeoutError) as error:
                fault = fault_of(error)
                if fault is Fault.OBJECT_LOST:
                    if len(ranks.handles) > 1:  # those that got all of their arguments wait for the others
                        await self._rebuild(error)
                    raise ObjectGoneError(f"rows of a batch are lost: {summary_line(error)}") from error
                if fault is Fault.RAISED:
                    raise
                await self._rebuild(error)

    async def _rebuild(self, error: BaseException) -> None:
        """Start new ranks and bring them to the state of the lost ones."""
        lost_at_s = self._supervision.clock()
        cause = describe(error)
        self._discard()
        self.is_whole = False
        while True:
            await self._supervision.next_restart("the learner group", error)
            try:
                self.ranks = await wait_for(self._start(), self._timeouts.start_s, "a new learner group to be ready")
                num_replayed = await self._catch_up()
                break
            except (RayError, WaitTimeoutError) as next_error:
                if fault_of(next_error) is Fault.RAISED:
                    raise
                self._discard()
                error = next_error
        self.is_whole = True
        now_s = self._supervision.clock()
        cause += f" (trained again on {num_replayed} steps)"
        self._supervision.report(Recovery("learner", "learner", cause, lost_at_s, now_s, now_s))

    async def _catch_up(self) -> int:
        """Load the newest checkpoint, train again on the steps since; return their number."""
        folder, step = self._newest()
        if folder is not None:
            await self._loaded(self.ranks, folder)
        replayed = [allocation for number, allocation in sorted(self._trained.items()) if number >= step]
        for allocation in replayed:
            batch = await self._read_batch(allocation)
            calls = [rank.train.remote(allocation, batch) for rank in self.ranks.handles]
            await wait_for(_all(calls), self._timeouts.step_s, f"a new learner group to repeat step {allocation.step}")
        return len(replayed)

    def _newest(self) -> tuple[Path | None, int]:
        """The newest checkpoint of this run, or what it began from, and the steps that were taken before it."""
        for folder in reversed(complete_checkpoints(self._root)):
            step = read_manifest(folder).step
            if step in self._saved:
                return folder, step
        return self._base, self._first_step

    def _forget(self) -> None:
        """Forget the batches that a checkpoint covers."""
        _, covered = self._newest()
        self._trained = {step: allocation for step, allocation in self._trained.items() if step >= covered}

    def _discard(self) -> None:
        for rank in self.ranks.handles:
            self._supervision.discard(rank)

    async def _loaded(self, ranks: Ranks, folder: Path) -> int:
        calls = [rank.load.remote(str(folder)) for rank in ranks.handles]
        steps: list[int] = await wait_for(_all(calls), self._timeouts.start_s, f"the learner to load {folder}")
        return steps[0]


def is_checkpoint_due(config: CheckpointConfig, step: int, num_steps: int) -> bool:
    """Whether a checkpoint is saved after `step` of `num_steps` steps: at the end in any case.

    >>> [step for step in range(1, 8) if is_checkpoint_due(CheckpointConfig(every_steps=3), step, 7)]
    [3, 6, 7]
    """
    return config.every_steps > 0 and (step % config.every_steps == 0 or step == num_steps)


async def _all(references: list[Any]) -> list[Any]:
    return await asyncio.gather(*references)
