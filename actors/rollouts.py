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
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from actors.generator_pool import GeneratorPool, PoolListener
from actors.waiting import wait_for
from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.staleness import StalenessAction
from vipray.errors import GeneratorsExhaustedError, RolloutAbortedError, WaitTimeoutError
from vipray.records import RolloutId, RolloutReceipt, Span, Verdict

_log = logging.getLogger(__name__)
_MAX_ERRORS = 3  # engines that a single rollout may make fail
VERDICTS_AT_ONCE = 4  # of one verifier: enough to keep it busy, few enough for a deadline to mean one verdict


@dataclass(frozen=True)
class RolloutLimits:
    """Deadlines, in seconds.

    Attributes:
        rollout_s: longest silence of a generator that has work.
        verdict_s: longest wait for one verdict.
        straggler_s: after which a step's batch is closed with what has arrived; None waits for all.
    """

    rollout_s: float
    verdict_s: float
    straggler_s: float | None = None


@dataclass(frozen=True)
class RolloutBatch:
    """The verified rollouts of a step: references to the rows, and what the controller needs to know of them.

    Attributes:
        references: to one-row record batches.
        verdicts: of the same rollouts.
        dropped: rollouts that were not waited for.
        span: from its first rollout's start to its last verdict.
        metrics: counts, by name.
    """

    references: tuple[Any, ...]
    verdicts: tuple[Verdict, ...]
    dropped: frozenset[RolloutId]
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
        verifiers: handles, used in turn.
        dispatcher: decides what starts where, and what counts.
        limits: deadlines.
        cancel: gives up a call that nobody waits for any more.
        recorder: is told of every rollout that was made or scored, counted or not.
        clock: wall-clock seconds.
    """

    def __init__(
        self,
        pool: GeneratorPool,
        verifiers: Sequence[Any],
        dispatcher: Dispatcher,
        limits: RolloutLimits,
        cancel: Callable[[Any], None],
        recorder: RolloutRecorder | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._limits = limits
        self._cancel = cancel
        self._clock = clock
        self._verifiers = itertools.cycle([(verifier, asyncio.Semaphore(VERDICTS_AT_ONCE)) for verifier in verifiers])
        self._steps: dict[int, _OpenStep] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[RolloutId, Any] = {}
        self._heard: dict[str, float] = {}  # when each generator last gave a sign, by the event loop's clock
        self._errors: Counter[RolloutId] = Counter()  # of engines, by the rollout that they failed on
        self._failure: BaseException | None = None
        for generator_id in pool.handles:
            dispatcher.join(generator_id, pool.versions.get(generator_id))
        pool.listeners.append(self)

    def open(self, step: int, rollout_ids: Sequence[RolloutId], expected_tokens: Mapping[str, float]) -> None:
        """Begin a step: its rollouts start wherever there is room and the version allows it."""
        self._dispatcher.add_step(step, rollout_ids, expected_tokens)
        self._steps[step] = _OpenStep(list(rollout_ids))
        self._pump()
        self.on_exhausted()
        if self._failure is not None:
            self.on_failed(self._failure)

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
        dropped = self._dispatcher.close_step(step)
        del self._steps[step]
        self._abort_superfluous()
        ordered = [opened.done[rollout_id] for rollout_id in opened.rollout_ids if rollout_id in opened.done]
        return RolloutBatch(
            references=tuple(reference for reference, _ in ordered),
            verdicts=tuple(verdict for _, verdict in ordered),
            dropped=frozenset(dropped),
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
        self._dispatcher.confirm(generator_id, version)
        self._pump()

    def on_lost(self, generator_id: str, at_s: float) -> None:
        """What a generator has not finished is made by others."""
        lost = self._dispatcher.leave(generator_id)
        if lost:
            _log.warning("%d rollouts of generator %s are made again", len(lost), generator_id)
        self.on_exhausted()
        self._pump()

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
            self._dispatcher.release(rollout_id, generator_id)
            self._pump()
            return
        except (RayError, WaitTimeoutError) as error:
            if not isinstance(getattr(error, "cause", None), RolloutAbortedError):
                self._pool.lose(generator_id, error)
                self._count_error(rollout_id, error)
                return
            self._dispatcher.reissue(rollout_id, generator_id)
            self._pump()
            return
        finally:
            if self._calls.get(rollout_id) is row:  # else another generator makes it by now
                del self._calls[rollout_id]
        self._record_made(receipt)
        self._dispatcher.release(rollout_id, generator_id)
        self._pump()
        scored, verdict = await self._verified(row, rollout_id, generator_id)
        if verdict is not None:
            self._record_scored(verdict)
            self._count(rollout_id, generator_id, scored, verdict)
        self._pump()

    def _count_error(self, rollout_id: RolloutId, error: Exception) -> None:
        """End the run where a rollout makes engine after engine fail: no replacement would fare better."""
        if isinstance(error, RayTaskError):  # raised by the engine; a process that died says nothing of the rollout
            self._errors[rollout_id] += 1
            if self._errors[rollout_id] >= _MAX_ERRORS:
                self.on_failed(error)

    async def _receipt(self, reference: Any, generator_id: str) -> RolloutReceipt:
        """Wait for a generator as long as it gives any sign: its rollouts queue in its engine."""
        task = asyncio.ensure_future(wait_for(reference, float("inf"), "a rollout"))
        try:
            while not task.done():
                silence_s = time.monotonic() - self._heard[generator_id]
                if silence_s >= self._limits.rollout_s:
                    what = f"a rollout of generator {generator_id}"
                    raise WaitTimeoutError(f"waited {self._limits.rollout_s:g} s for {what} without an answer")
                await asyncio.wait([task], timeout=self._limits.rollout_s - silence_s)
            self._heard[generator_id] = time.monotonic()
            receipt: RolloutReceipt = task.result()
            return receipt
        finally:
            task.cancel()

    async def _verified(self, row: Any, rollout_id: RolloutId, generator_id: str) -> tuple[Any, Verdict | None]:
        """Have a rollout scored; no verdict where the rollout itself is lost, which is then made again."""
        verifier, slots = next(self._verifiers)
        async with slots:
            scored, verdict_reference = verifier.score.options(num_returns=2).remote(row)
            try:
                return scored, await wait_for(verdict_reference, self._limits.verdict_s, "the verdict of a rollout")
            except RayError:
                if await self._is_whole(row):
                    raise
        self._dispatcher.reissue(rollout_id, generator_id)
        return None, None

    async def _is_whole(self, row: Any) -> bool:
        """Whether a rollout that could not be verified is there."""
        try:
            await wait_for(row, self._limits.rollout_s, "a rollout that could not be verified")
        except RayError:
            return False
        return True

    def _count(self, rollout_id: RolloutId, generator_id: str, scored: Any, verdict: Verdict) -> None:
        decision = self._dispatcher.complete(rollout_id, generator_id, verdict.policy_version)
        if decision.action is not StalenessAction.ADMIT:
            _log.info("rollout %s of generator %s is not counted: %s", rollout_id, generator_id, decision.reason)
            return
        opened = self._steps[rollout_id.step]
        opened.done[rollout_id] = (scored, verdict)
        opened.has_any.set()
        if self._dispatcher.is_complete(rollout_id.step):
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
