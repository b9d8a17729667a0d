"""Makes the rollouts of a step: dispatch, stream, verify, account; re-issue what a lost generator leaves.

    ledger ── pending ids ──► spread over generators ──► stream of record batches ──► verifier ──► ledger.complete
       ▲                                                        │ stream breaks
       └───────────────── give_up: unfinished ids pending again ┘

A task per generator drives its stream. A round ends when every stream has ended; what is pending then is dispatched
again to the generators that are left. References to rollouts pass through here, and verdicts; nothing looks at a token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.waiting import wait_for
from vipray.dispatch.ledger import Ledger
from vipray.dispatch.router import spread
from vipray.errors import GeneratorsExhaustedError, WaitTimeoutError, summary_line
from vipray.records import RolloutId, Verdict

_log = logging.getLogger(__name__)
_VERDICTS_AT_ONCE = 4  # of one verifier: enough to keep it busy, few enough for a deadline to mean one verdict


@dataclass(frozen=True)
class RolloutBatch:
    """The verified rollouts of a step: references to the rows, and what the controller needs to know of them."""

    references: tuple[Any, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, float]


class GeneratorPool:
    """The generators that are left. A lost one is ended, so that its engine takes no more of the machine.

    Args:
        handles: by generator id.
        discard: ends an actor at once.
    """

    def __init__(self, handles: Mapping[str, Any], discard: Callable[[Any], None]) -> None:
        self.handles = dict(handles)
        self.last_error: Exception | None = None
        self._discard = discard

    def lose(self, generator_id: str, error: Exception) -> None:
        """Take a generator out of the pool; does nothing when it is out already."""
        handle = self.handles.pop(generator_id, None)
        if handle is not None:
            _log.warning("generator %s is lost: %s", generator_id, summary_line(error))
            self.last_error = error
            self._discard(handle)

    def require(self, what: str) -> None:
        """Raise `GeneratorsExhaustedError`, with the last loss as its cause, when no generator is left."""
        if not self.handles:
            cause = "there was none" if self.last_error is None else summary_line(self.last_error)
            raise GeneratorsExhaustedError(
                f"all generators are lost, {what}; the last one: {cause}"
            ) from self.last_error


class RolloutMaker:
    """Runs rollouts on the generator pool and the verifier pool.

    Args:
        pool: the generators.
        verifiers: handles, used in turn.
        rollout_timeout_s: longest silence of a generator that has work.
        verdict_timeout_s: longest wait for one verdict.
    """

    def __init__(
        self, pool: GeneratorPool, verifiers: Sequence[Any], *, rollout_timeout_s: float, verdict_timeout_s: float
    ) -> None:
        self._pool = pool
        self._verifiers = itertools.cycle([(verifier, asyncio.Semaphore(_VERDICTS_AT_ONCE)) for verifier in verifiers])
        self._rollout_timeout_s = rollout_timeout_s
        self._verdict_timeout_s = verdict_timeout_s

    async def make(self, rollout_ids: Sequence[RolloutId]) -> RolloutBatch:
        """Return every one of the rollouts, verified, each exactly once, in the order in which they were asked for.

        Raises:
            GeneratorsExhaustedError: the last generator was lost.
            WaitTimeoutError: a verdict did not come in time.
            RayError: a verifier was lost.
        """
        ledger = Ledger(rollout_ids)
        done: dict[RolloutId, tuple[Any, Verdict]] = {}
        while not ledger.is_complete:
            self._pool.require(f"{len(ledger.unfinished)} of {len(rollout_ids)} rollouts are still to be made")
            shares = spread(ledger.pending, list(self._pool.handles))
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
        """Run one generator's share to the end of its stream, or to its loss."""
        for rollout_id in share:
            ledger.issue(rollout_id, generator_id)
        stream = self._pool.handles[generator_id].generate.options(num_returns="streaming").remote(share)
        async with asyncio.TaskGroup() as verdicts:
            try:
                while (reference := await self._next(stream, generator_id)) is not None:
                    verdicts.create_task(self._verify(reference, generator_id, ledger, done))
            except (RayError, WaitTimeoutError) as error:
                self._pool.lose(generator_id, error)
        lost = ledger.give_up(generator_id)  # after the last verdict: what is verified stays
        if lost:
            _log.warning("%d rollouts of generator %s are made again", len(lost), generator_id)
            self._pool.lose(generator_id, RuntimeError("its stream ended before its work was done"))

    async def _next(self, stream: Any, generator_id: str) -> Any:
        """The reference of the next finished rollout, None at the end."""
        try:
            return await wait_for(anext(stream), self._rollout_timeout_s, f"a rollout of generator {generator_id}")
        except StopAsyncIteration:
            return None

    async def _verify(
        self, rollout: Any, generator_id: str, ledger: Ledger, done: dict[RolloutId, tuple[Any, Verdict]]
    ) -> None:
        verifier, slots = next(self._verifiers)
        async with slots:
            scored, verdict_reference = verifier.score.options(num_returns=2).remote(rollout)
            try:
                what = "the verdict of a rollout"
                verdict: Verdict = await wait_for(verdict_reference, self._verdict_timeout_s, what)
            except RayError:
                # A generator that fails leaves its error in the place of a rollout, and so in the verifier's input.
                error = await self._error_of(rollout)
                if error is None:
                    raise
                self._pool.lose(generator_id, error)
                return
        if ledger.complete(verdict.rollout_id):
            done[verdict.rollout_id] = (scored, verdict)

    async def _error_of(self, reference: Any) -> RayError | None:
        try:
            await wait_for(reference, self._rollout_timeout_s, "a rollout that could not be verified")
        except RayError as error:
            return error
        return None


def _first(errors: ExceptionGroup) -> Exception:
    """The first error of a group of groups: the others are its company or its consequence."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
