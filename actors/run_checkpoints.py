"""Checkpoints of a whole run: the driver's part first, then the learner's; the manifest is written last.

    begin ──► run/ (driver) ──► rollouts.parquet (writer) ──► learner/ (ranks, behind the next step) ──► named

A checkpoint that cannot be written ends nothing: that is said, and training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from ray.exceptions import RayError

from actors.faults import Fault, fault_of
from actors.learner_group import LearnerGroup
from actors.seat import Seat
from vipray.checkpoints import RUN_FOLDER, begin
from vipray.errors import summary_line
from vipray.records import ROLLOUT_SCHEMA, Outcome, RolloutId, Span, Verdict
from vipray.run_state import RunState

_WRITING_TIMEOUT_S = 300.0


class RunCheckpoints:
    """Writes the checkpoints of one run.

    Args:
        root: folder of the checkpoints, which all nodes share.
        keep_last: how many are kept.
        facts: of the run, for the manifest (`vipray.resume.facts`).
        learner: writes its own part.
        writer: writes rollouts.
        say: is told what could not be written, in a line.
    """

    def __init__(
        self,
        root: Path,
        keep_last: int,
        facts: Mapping[str, Any],
        learner: LearnerGroup,
        writer: Seat,
        say: Callable[[str], None],
    ) -> None:
        self._root = root
        self._keep_last = keep_last
        self._facts = facts
        self._learner = learner
        self._writer = writer
        self._say = say
        self.step: int | None = None  # of the last checkpoint that was begun
        self._is_good = True

    async def save(self, state: RunState, rows: Sequence[Any]) -> None:
        """Begin a checkpoint; it is complete some time after this returns, or when `finish` does.

        Args:
            state: of the driver, without rollouts.
            rows: references to the verified rollouts of `state.plans`.
        """
        self.step, self._is_good = state.step, True
        try:
            folder = begin(self._root, state.step) / RUN_FOLDER
            folder.mkdir()
            state.write(folder)
        except OSError as error:
            self._say_failed(state.step, error)
            return
        path = str(folder / "rollouts.parquet")
        try:
            await self._write_rows(path, rows)
        except RayError as error:
            if fault_of(error) is not Fault.OBJECT_LOST:
                self._say_failed(state.step, error)
                return
            await self._write_rows(path, [])  # they are made again if the run goes on from here
        self._say_problem(await self._learner.save(state.step, self._keep_last, self._facts))

    async def finish(self) -> bool:
        """Wait until the last checkpoint is complete; return whether it is."""
        problem = await self._learner.finish_saving()
        self._say_problem(problem)
        return problem is None and self._is_good

    async def _write_rows(self, path: str, rows: Sequence[Any]) -> None:
        await self._writer.call(
            lambda writer: writer.write_file.remote(path, *rows), _WRITING_TIMEOUT_S, "a checkpoint's rollouts"
        )

    def _say_failed(self, step: int, error: Exception) -> None:
        self._is_good = False
        self._say_problem(f"the checkpoint of step {step} could not be written below {self._root}: {error}")

    def _say_problem(self, problem: str | None) -> None:
        if problem is not None:
            self._say(f"error: {summary_line(RuntimeError(problem))}; training goes on")


def restored_rollouts(rollouts: pa.Table | None, now_s: float) -> list[tuple[pa.RecordBatch, Verdict]]:
    """Scored rollouts of a checkpoint as one-row batches with their verdicts, as a verifier would give them."""
    if rollouts is None:
        return []
    restored = []
    for row in rollouts.to_pylist():
        verdict = Verdict(
            rollout_id=RolloutId(row["step"], row["prompt_id"], row["k"]),
            reward=row["reward"],
            outcome=Outcome(row["outcome"]),
            num_tokens=len(row["completion_token_ids"]),
            policy_version=row["policy_version_first"],
            span=Span(now_s, now_s),
        )
        restored.append((pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA), verdict))
    return restored
