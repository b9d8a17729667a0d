"""Has batches written behind the training on them, one at a time, and reads them back for a new learner group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError, RayTaskError

from actors.faults import Fault, fault_of
from actors.rollouts import RolloutBatch
from actors.seat import Seat
from vipray.errors import ObjectGoneError, summary_line
from vipray.records import Allocation, set_aside_row

_TIMEOUT_S = 300.0
_ROLLOUTS = "rollouts"


class StepWriter:
    """Writes the rollouts of steps and evaluations to the run's folder.

    Args:
        writer: the actor that writes.
        say: is told what could not be written, in a line.
    """

    def __init__(self, writer: Seat, say: Callable[[str], None]) -> None:
        self.lost_steps: set[int] = set()  # training steps whose rollouts are on no disk
        self._writer = writer
        self._say = say
        self._writing: tuple[str, int, asyncio.Task[Any]] | None = None

    async def write(self, kind: str, step: int, batch: RolloutBatch) -> None:
        """Have a batch written, once the one before it is on disk: an error of the writer is not passed over.

        A batch that is written again, because rows of it were lost, takes the place of the one before.
        """
        if self._writing is not None and self._writing[:2] == (kind, step):
            self._writing[2].cancel()
            self._writing = None
        await self.written()
        rows = [*batch.references, *(set_aside_row(*item) for item in sorted(batch.set_aside.items()))]
        writing = self._writer.call(
            lambda writer: writer.write.remote(kind, step, *rows), _TIMEOUT_S, f"the {kind} of step {step} on disk"
        )
        self._writing = (kind, step, asyncio.create_task(writing))

    async def written(self) -> None:
        """Wait for the last batch to be on disk; it is not an error of the run that rows of it are lost."""
        if self._writing is None:
            return
        (kind, step, task), self._writing = self._writing, None
        try:
            await task
        except RayError as error:
            if fault_of(error) is not Fault.OBJECT_LOST:
                raise
            if kind == _ROLLOUTS:
                self.lost_steps.add(step)
            self._say(f"error: the {kind} of step {step} were lost before they were on disk: {summary_line(error)}")

    async def read(self, allocation: Allocation) -> Any:
        """Read a training step's rollouts back, in the order in which they were trained on.

        Raises:
            ObjectGoneError: they were lost before they were on disk.
        """
        step = allocation.step
        if self._writing is not None and self._writing[:2] == (_ROLLOUTS, step):
            await asyncio.wait([self._writing[2]])
        try:
            return await self._writer.call(
                lambda writer: writer.read.remote(step, allocation.rollout_ids()),
                _TIMEOUT_S,
                f"the rollouts of step {step} to be read back",
            )
        except RayTaskError as error:
            if isinstance(error.cause, OSError | KeyError):
                raise ObjectGoneError(
                    f"a new learner group cannot repeat step {step}, whose rollouts are not on disk "
                    f"({summary_line(error)}); checkpoints.every_steps says how much has to be repeated"
                ) from error
            raise

    def close(self) -> None:
        """Give up what is under way."""
        if self._writing is not None:
            self._writing[2].cancel()
