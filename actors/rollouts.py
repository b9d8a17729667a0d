"""Makes the rollouts of one or several steps at once: dispatch, generate, verify, account.

    dispatcher ── assign ──► a call of a generator for each rollout ── receipt ──► release: room for the next
        ▲                              │ lost                             │
        └── leave: unfinished ids ─────┘                                  ▼
        └── reissue: too old, or lost on the way ────────────── verifier ── verdict ──► complete

A generator gives a rollout and a receipt, a verifier the scored rollout and a verdict. Receipts and verdicts are looked
at here; rollouts pass as references, and nothing looks at a token. What is decided is decided by the dispatcher, which
knows no actor; every change is followed by `_pump`, which starts what there is room for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from actors.faults import Fault, fault_of
from actors.generator_pool import GeneratorPool, PoolListener
from actors.verifiers import Verifiers
from actors.waiting import wait_for
from vipray.dispatch.deadlines import WorkDeadlines
from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.staleness import StalenessAction
from vipray.errors import (
    EngineLostError,
    GeneratorsExhaustedError,
    LeaseExpiredError,
    ObjectGoneError,
    RolloutAbortedError,
    WaitTimeoutError,
)
from vipray.records import RolloutId, RolloutReceipt, Span, Verdict

_log = logging.getLogger(__name__)
_PROBE_S = 10.0  # for a row that may be lost


@dataclass(frozen=True)
class RolloutLimits:
    """Deadlines, in seconds.

    Attributes:
        rollout_s: longest silence of a generator that has work, whatever that work is.
        max_tokens: of a completion, from which a shorter one is derived once something is known.
        straggler_s: after which a step's batch is closed with what has arrived; None waits for all.
    """

    rollout_s: float
    max_tokens: int
    straggler_s: float | None = None


@dataclass(frozen=True)
class RolloutBatch:
    """The verified rollouts of a step: references to the rows, and what the controller needs to know of them.

    Attributes:
        references: to one-row record batches.
        verdicts: of the same rollouts.
        dropped: rollouts that were not waited for, or set aside.
        set_aside: why, by rollout: those that brought down generators or were lost with them again and again.
        span: from its first rollout's start to its last verdict.
        metrics: counts, by name.
    """

    references: tuple[Any, ...]
    verdicts: tuple[Verdict, ...]
    dropped: frozenset[RolloutId]
    set_aside: Mapping[RolloutId, str]
    span: Span
    metrics: Mapping[str, float]


class RolloutRecorder(Protocol):
    """Who keeps book of what was done when."""

    def on_made(self, receipt: RolloutReceipt) -> None:
        """A generator has made a rollout."""

    def on_scored(self, verdict: Verdict) -> None:
        """A verifier has scored a rollout."""


class RolloutMaker(PoolListener):
    """Runs rollouts on the generator pool and the verifier pool.

    Args:
        pool: the generators; those that are lost are told to the dispatcher.
        verifiers: the pool that scores.
        dispatcher: decides what starts where, and what counts.
        limits: deadlines.
        cancel: gives up a call that nobody waits for any more.
        recorder: is told of every rollout that was made or scored, counted or not.
        clock: wall-clock seconds.
        spoil: may put another reference in the place of a scored rollout's, for trying out faults.
    """

    def __init__(
        self,
        pool: GeneratorPool,
        verifiers: Verifiers,
        dispatcher: Dispatcher,
        limits: RolloutLimits,
        cancel: Callable[[Any], None],
        recorder: RolloutRecorder | None = None,
        clock: Callable[[], float] = time.time,
        spoil: Callable[[Any], Any] | None = None,
    ) -> None:
        self._spoil = spoil
        self._pool = pool
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._limits = limits
        self._cancel = cancel
        self._clock = clock
        self._verifiers = verifiers
        self._deadlines = WorkDeadlines(limits.rollout_s)
        self._steps: dict[int, _OpenStep] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[RolloutId, Any] = {}
        self._heard: dict[str, float] = {}  # when each generator last gave a sign, by the event loop's clock
        self._failure: BaseException | None = None
        for generator_id in pool.handles:
            dispatcher.join(generator_id, pool.versions.get(generator_id))
        pool.listeners.append(self)

    def open(
        self,
        step: int,
        rollout_ids: Sequence[RolloutId],
        expected_tokens: Mapping[str, float],
        done: Sequence[tuple[Any, Verdict]] = (),
    ) -> None:
        """Begin a step: its rollouts start wherever there is room and the version allows it.

        Args:
            step: number of the step.
            rollout_ids: of the step.
            expected_tokens: by prompt id.
            done: scored rollouts that a checkpoint brings along, with their verdicts.
        """
        self._dispatcher.add_step(step, rollout_ids, expected_tokens)
        opened = self._steps[step] = _OpenStep(list(rollout_ids))
        for scored, verdict in done:
            if self._dispatcher.restore(verdict.rollout_id, verdict.policy_version):
                opened.begin(self._clock())
                self._take_in(verdict.rollout_id, scored, verdict)
        self._settle(step)
        self._pump()
        self._fail_early()

    async def remake(self, batch: RolloutBatch, step: int, expected_tokens: Mapping[str, float]) -> RolloutBatch:
        """Make those rollouts of a closed batch again whose rows are nowhere any more; return the whole batch."""
        pairs = list(zip(batch.references, batch.verdicts, strict=True))
        are_there = await asyncio.gather(*(_is_there(reference) for reference in batch.references))
        kept = [pair for pair, is_there in zip(pairs, are_there, strict=True) if is_there]
        lost = [verdict.rollout_id for (_, verdict), is_there in zip(pairs, are_there, strict=True) if not is_there]
        if not lost:
            return replace(batch, metrics={**batch.metrics, "rollouts/remade": 0.0})
        _log.warning("%d verified rollouts of step %d are lost and made again", len(lost), step)
        self._dispatcher.reopen(step, lost, expected_tokens)
        self._steps[step] = _OpenStep(lost)
        self._pump()
        self._fail_early()
        made = await self.finished(step)
        again = [*kept, *zip(made.references, made.verdicts, strict=True)]
        place = {verdict.rollout_id: index for index, verdict in enumerate(batch.verdicts)}
        again.sort(key=lambda pair: place[pair[1].rollout_id])
        return replace(
            batch,
            references=tuple(reference for reference, _ in again),
            verdicts=tuple(verdict for _, verdict in again),
            dropped=batch.dropped | made.dropped,
            set_aside={**batch.set_aside, **made.set_aside},
            metrics={**batch.metrics, "rollouts/remade": float(len(lost))},
        )

    def done(self) -> list[tuple[Any, Verdict]]:
        """What has arrived of the steps that are open, for a checkpoint."""
        return [pair for opened in self._steps.values() for pair in opened.done.values()]

    async def finished(self, step: int) -> RolloutBatch:
        """Return a step's rollouts, verified, each exactly once, in the order in which they were asked for.

        Raises:
            GeneratorsExhaustedError: the last generator was lost.
            WaitTimeoutError: a verdict did not come in time.
            RayError: a verifier was lost.
        """
        opened = self._steps[step]
        await opened.has_begun.wait()
        if self._limits.straggler_s is None:
            await opened.is_complete.wait()
        else:
            await opened.completed_within(opened.start_s + self._limits.straggler_s - self._clock())
            await opened.has_any.wait()
        if self._failure is not None:
            raise self._failure
        metrics = self._dispatcher.metrics(step)
        set_aside = self._dispatcher.set_aside(step)
        dropped = self._dispatcher.close_step(step)
        del self._steps[step]
        self._abort_superfluous()
        ordered = [opened.done[rollout_id] for rollout_id in opened.rollout_ids if rollout_id in opened.done]
        return RolloutBatch(
            references=tuple(reference for reference, _ in ordered),
            verdicts=tuple(verdict for _, verdict in ordered),
            dropped=frozenset(dropped),
            set_aside=set_aside,
            span=Span(opened.start_s, self._clock()),
            metrics={f"rollouts/{name}": value for name, value in {**metrics, "dropped": len(dropped)}.items()},
        )

    def close(self) -> None:
        """Stop whatever is under way."""
        if self in self._pool.listeners:
            self._pool.listeners.remove(self)
        for task in self._tasks:
            task.cancel()

    def on_confirmed(self, generator_id: str, version: int, span: Span) -> None:
        """A generator may start what its new version allows."""
        self._deadlines.observe_pause(span.duration_s)
        self._dispatcher.confirm(generator_id, version)
        self._pump()

    def on_lost(self, generator_id: str, at_s: float, *, is_suspicious: bool) -> int:
        """What a generator has not finished is made by others."""
        lost = self._dispatcher.leave(generator_id, is_suspicious=is_suspicious)
        if lost:
            _log.warning("%d rollouts of generator %s are made again", len(lost), generator_id)
        for step in list(self._steps):
            self._settle(step)
        self.on_exhausted()
        self._pump()
        return len(lost)

    def on_joined(self, generator_id: str) -> None:
        """A new generator gets rollouts once it has confirmed a version."""
        self._dispatcher.join(generator_id)

    def on_exhausted(self) -> None:
        """End every wait where no generator is left for what is unfinished."""
        unfinished = [rollout_id for step in self._steps for rollout_id in self._dispatcher.unfinished(step)]
        if not unfinished:
            return
        try:
            total = sum(len(opened.rollout_ids) for opened in self._steps.values())
            self._pool.require(f"{len(unfinished)} of {total} rollouts are still to be made")
        except GeneratorsExhaustedError as error:
            self.on_failed(error)

    def _fail_early(self) -> None:
        """Wake whoever waits for a step that nobody will make."""
        self.on_exhausted()
        if self._failure is not None:
            self.on_failed(self._failure)

    def _pump(self) -> None:
        """Start whatever there is room for."""
        for generator_id, rollout_ids in self._dispatcher.assign().items():
            self._heard[generator_id] = time.monotonic()
            for rollout_id in rollout_ids:
                self._steps[rollout_id.step].begin(self._clock())
                task = asyncio.create_task(self._make(generator_id, rollout_id))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failed(error)

    def on_failed(self, error: BaseException) -> None:
        """End every wait with an error; the first one is the cause of what follows."""
        self._failure = self._failure or error
        for opened in self._steps.values():
            for event in (opened.has_begun, opened.has_any, opened.is_complete):
                event.set()

    async def _make(self, generator_id: str, rollout_id: RolloutId) -> None:
        """Have one rollout made and verified."""
        handle = self._pool.handles.get(generator_id)
        if handle is None:
            return  # lost in the meantime: the dispatcher knows
        row, receipt_reference = handle.generate.options(num_returns=2).remote(rollout_id)
        self._calls[rollout_id] = row
        try:
            receipt = await self._receipt(receipt_reference, generator_id)
        except TaskCancelledError:  # by `_abort_superfluous`
            self._dispatcher.reissue(rollout_id, generator_id)
            self._pump()
            return
        except (RayError, WaitTimeoutError) as error:
            self._on_unmade(rollout_id, generator_id, error)
            return
        finally:
            if self._calls.get(rollout_id) is row:  # else another generator makes it by now
                del self._calls[rollout_id]
        self._record_made(receipt)
        self._deadlines.observe(receipt.span.duration_s, receipt.num_tokens)
        self._dispatcher.release(rollout_id, generator_id)
        self._pump()
        try:
            scored, verdict = await self._verifiers.score(row)
        except ObjectGoneError:
            self._dispatcher.reissue(rollout_id, generator_id)
        else:
            self._record_scored(verdict)
            self._count(rollout_id, generator_id, scored, verdict)
        self._pump()

    def _on_unmade(self, rollout_id: RolloutId, generator_id: str, error: RayError | WaitTimeoutError) -> None:
        """See to a rollout that its generator has not made."""
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(error, LeaseExpiredError):
            _log.warning("%s is made again: %s", rollout_id, error)
        if isinstance(cause, RolloutAbortedError) or isinstance(error, LeaseExpiredError):
            self._dispatcher.reissue(rollout_id, generator_id)
            self._pump()
            return
        # What the engine says of one rollout is about that rollout; an engine that died took all of them with it.
        is_about_rollout = fault_of(error) is Fault.RAISED and not isinstance(cause, EngineLostError)
        if is_about_rollout and generator_id in self._pool.handles:
            self._dispatcher.blame(rollout_id, generator_id)
            self._settle(rollout_id.step)
        self._pool.lose(generator_id, error, is_innocent=is_about_rollout)

    async def _receipt(self, reference: Any, generator_id: str) -> RolloutReceipt:
        """Wait for a generator as long as it gives any sign, and no longer than any rollout takes.

        Raises:
            WaitTimeoutError: it says nothing at all.
            LeaseExpiredError: it makes others, and has had this one for too long.
        """
        issued_at = time.monotonic()
        task = asyncio.ensure_future(wait_for(reference, float("inf"), "a rollout"))
        try:
            while not task.done():
                now, what = time.monotonic(), f"a rollout of generator {generator_id}"
                deadline_s = self._deadlines.silence_s(self._limits.max_tokens)
                silence_left_s = self._heard[generator_id] + deadline_s - now
                if silence_left_s <= 0:
                    raise WaitTimeoutError(f"waited {deadline_s:g} s for {what} without an answer")
                lease_s = self._deadlines.lease_s(self._limits.max_tokens)
                lease_left_s = issued_at + lease_s - now
                if lease_left_s <= 0:
                    self._cancel(reference)
                    raise LeaseExpiredError(f"waited {lease_s:g} s for {what}, which makes others meanwhile")
                await asyncio.wait([task], timeout=min(silence_left_s, lease_left_s))
            self._heard[generator_id] = time.monotonic()
            receipt: RolloutReceipt = task.result()
            return receipt
        finally:
            task.cancel()

    def _count(self, rollout_id: RolloutId, generator_id: str, scored: Any, verdict: Verdict) -> None:
        decision = self._dispatcher.complete(rollout_id, generator_id, verdict.policy_version)
        if decision.action is not StalenessAction.ADMIT:
            _log.info("rollout %s of generator %s is not counted: %s", rollout_id, generator_id, decision.reason)
            return
        self._take_in(rollout_id, scored, verdict)
        self._settle(rollout_id.step)

    def _take_in(self, rollout_id: RolloutId, scored: Any, verdict: Verdict) -> None:
        opened = self._steps[rollout_id.step]
        opened.done[rollout_id] = (scored if self._spoil is None else self._spoil(scored), verdict)
        opened.has_any.set()

    def _settle(self, step: int) -> None:
        """Wake whoever waits for a step that is complete, be it by what was set aside."""
        opened = self._steps.get(step)
        if opened is not None and self._dispatcher.is_complete(step):
            opened.begin(self._clock())
            opened.has_any.set()
            opened.is_complete.set()

    def _record_made(self, receipt: RolloutReceipt) -> None:
        if self._recorder is not None:
            self._recorder.on_made(receipt)

    def _record_scored(self, verdict: Verdict) -> None:
        if self._recorder is not None:
            self._recorder.on_scored(verdict)

    def _abort_superfluous(self) -> None:
        for rollout_ids in self._dispatcher.superfluous().values():
            for rollout_id in rollout_ids:
                if rollout_id in self._calls:
                    self._cancel(self._calls.pop(rollout_id))


class _OpenStep:
    """What has arrived of a step."""

    def __init__(self, rollout_ids: list[RolloutId]) -> None:
        self.rollout_ids = rollout_ids
        self.start_s = 0.0  # of its first rollout
        self.has_begun = asyncio.Event()
        self.done: dict[RolloutId, tuple[Any, Verdict]] = {}
        self.has_any = asyncio.Event()
        self.is_complete = asyncio.Event()

    def begin(self, at_s: float) -> None:
        """Note the start of a rollout; the first one counts."""
        if not self.has_begun.is_set():
            self.start_s = at_s
            self.has_begun.set()

    async def completed_within(self, seconds: float) -> None:
        """Wait for the last rollout, but no longer than this."""
        waiting = asyncio.ensure_future(self.is_complete.wait())
        await asyncio.wait([waiting], timeout=max(0.0, seconds))
        waiting.cancel()


async def _is_there(reference: Any) -> bool:
    """Whether a row can still be had; one that a checkpoint brought along is no reference."""
    if isinstance(reference, pa.RecordBatch):
        return True
    try:
        await wait_for(reference, _PROBE_S, "a verified rollout")
    except (RayError, WaitTimeoutError):
        return False
    return True
