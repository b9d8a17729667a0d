"""Makes the rollouts of a step: dispatch, stream, verify, account; re-issue what a lost generator leaves.

    ledger ── pending ids ──► spread over generators ──► stream of record batches ──► verifier ──► ledger.complete
       ▲                                                        │ stream breaks
       └───────────────── give_up: unfinished ids pending again ┘

A task per generator drives its stream. A round ends when every stream has ended; what is pending then is dispatched
again to the generators that are left. Only references to rollouts pass through here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.waiting import wait_for
from vipray.dispatch.ledger import Ledger
from vipray.dispatch.router import spread
from vipray.errors import GeneratorsExhaustedError, WaitTimeoutError, summary_line
from vipray.records import RolloutId, Verdict

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutBatch:
    """The verified rollouts of a step: references to the rows, and what the controller needs to know of them."""

    references: tuple[Any, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, float]


class RolloutMaker:
    """Runs rollouts on the generator pool and the verifier pool.

    Args:
        generators: handles by id; a generator that is lost is taken out of the pool.
        verifiers: handles, used in turn.
        rollout_timeout_s: longest silence of a generator that has work.
        verdict_timeout_s: longest wait for one verdict.
    """

    def __init__(
        self,
        generators: Mapping[str, Any],
        verifiers: Sequence[Any],
        *,
        rollout_timeout_s: float,
        verdict_timeout_s: float,
    ) -> None:
        self.generators = dict(generators)
        self._verifiers = itertools.cycle(verifiers)
        self._rollout_timeout_s = rollout_timeout_s
        self._verdict_timeout_s = verdict_timeout_s

    async def make(self, rollout_ids: Sequence[RolloutId]) -> RolloutBatch:
        """Return every one of the rollouts, verified, each exactly once.

        Raises:
            GeneratorsExhaustedError: the last generator was lost.
        """
        ledger = Ledger(rollout_ids)
        done: dict[RolloutId, tuple[Any, Verdict]] = {}
        while not ledger.is_complete:
            if not self.generators:
                raise GeneratorsExhaustedError(
                    f"all generators are lost with {len(ledger.unfinished)} of {len(rollout_ids)} rollouts to make"
                )
            shares = spread(ledger.pending, list(self.generators))
            try:
                async with asyncio.TaskGroup() as group:
                    for generator_id, share in shares.items():
                        group.create_task(self._drive(generator_id, share, ledger, done))
            except ExceptionGroup as errors:
                raise _first(errors) from errors
        ordered = [done[rollout_id] for rollout_id in rollout_ids]
        return RolloutBatch(
            references=tuple(reference for reference, _ in ordered),
            verdicts=tuple(verdict for _, verdict in ordered),
            metrics={f"rollouts/{name}": value for name, value in ledger.metrics().items()},
        )

    async def _drive(
        self, generator_id: str, share: list[RolloutId], ledger: Ledger, done: dict[RolloutId, tuple[Any, Verdict]]
    ) -> None:
        for rollout_id in share:
            ledger.issue(rollout_id, generator_id)
        stream = self.generators[generator_id].generate.options(num_returns="streaming").remote(share)
        async with asyncio.TaskGroup() as verdicts:
            try:
                while (reference := await self._next(stream, generator_id)) is not None:
                    verdicts.create_task(self._verify(reference, generator_id, ledger, done))
            except (RayError, WaitTimeoutError) as error:
                self._lose(generator_id, error)
        lost = ledger.give_up(generator_id)  # after the last verdict: what is verified stays
        if lost:
            _log.warning("%d rollouts of generator %s are made again", len(lost), generator_id)
            self.generators.pop(generator_id, None)  # a stream that ends early is a loss, too

    async def _next(self, stream: Any, generator_id: str) -> Any:
        """The reference of the next finished rollout, None at the end."""
        try:
            return await wait_for(anext(stream), self._rollout_timeout_s, f"a rollout of generator {generator_id}")
        except StopAsyncIteration:
            return None

    async def _verify(
        self, rollout: Any, generator_id: str, ledger: Ledger, done: dict[RolloutId, tuple[Any, Verdict]]
    ) -> None:
        scored, verdict_reference = next(self._verifiers).score.options(num_returns=2).remote(rollout)
        try:
            verdict: Verdict = await wait_for(verdict_reference, self._verdict_timeout_s, "the verdict of a rollout")
        except RayError:
            try:
                await rollout  # a generator that fails leaves its error in the place of a rollout
            except RayError as error:
                self._lose(generator_id, error)
                return
            raise
        if ledger.complete(verdict.rollout_id):
            done[verdict.rollout_id] = (scored, verdict)

    def _lose(self, generator_id: str, error: Exception) -> None:
        _log.warning("generator %s is lost: %s", generator_id, summary_line(error))
        self.generators.pop(generator_id, None)


def _first(errors: ExceptionGroup) -> Exception:
    """The first error of a group of groups: the others are its company or its consequence."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
