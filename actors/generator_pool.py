"""The generators that are left, the versions that they have confirmed, and the replacement of those that are lost.

Each generator has a loader of its own, which brings it the newest version as soon as it is free: no generator waits for
another, and a slow one skips what has become old meanwhile. A replacement has a new id, so that late results of the
lost one are never taken for its own; it serves once it has confirmed the newest version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, describe, fault_of, is_death_of_a_node, yield_s
from actors.waiting import wait_for
from vipray.dispatch.restarts import RestartAction, RestartPolicy
from vipray.errors import GeneratorsExhaustedError, WaitTimeoutError, WeightSyncError, summary_line
from vipray.records import Recovery, Span

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """References to a published version: its manifest and its chunks, in the manifest's order."""

    version: int
    manifest: Any
    chunks: Sequence[Any]


@dataclass(frozen=True)
class Replacements:
    """How lost generators are replaced.

    Attributes:
        start: makes the actor of a new generator, by id.
        policy: whether and when.
        start_timeout_s: longest wait for it to be ready.
        say: is told what happens, in a line.
        report: is told of every recovery.
    """

    start: Callable[[str], Any]
    policy: RestartPolicy
    start_timeout_s: float
    say: Callable[[str], None]
    report: Callable[[Recovery], None]


class PoolListener:
    """Is told what happens to generators; does nothing by itself."""

    def on_joined(self, generator_id: str) -> None:
        """A generator is new in the pool, and has no version yet."""

    def on_confirmed(self, generator_id: str, version: int, span: Span) -> None:
        """A generator has confirmed a version, which it took in `span`."""

    def on_lost(self, generator_id: str, at_s: float, *, is_suspicious: bool) -> int:
        """A generator is out of the pool, since `at_s`; return the number of rollouts that are made again.

        `is_suspicious` says whether what it was making may have brought it down.
        """
        return 0

    def on_weights_lost(self, version: int) -> None:
        """Chunks of a version are nowhere any more."""

    def on_exhausted(self) -> None:
        """The last replacement that could be made has failed."""

    def on_failed(self, error: BaseException) -> None:
        """Something went wrong that no other generator can make up for."""


class GeneratorPool:
    """Generators by id. A lost one is ended, so that its engine takes no more of the machine.

    Args:
        handles: by generator id.
        discard: ends an actor at once.
        load_timeout_s: longest wait for a generator to take a version.
        replacements: None replaces nothing.
        clock: wall-clock seconds.
    """

    def __init__(
        self,
        handles: Mapping[str, Any],
        discard: Callable[[Any], None],
        load_timeout_s: float,
        replacements: Replacements | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.handles = dict(handles)
        self.versions: dict[str, int] = {}  # confirmed
        self.last_error: BaseException | None = None
        self.listeners: list[PoolListener] = []
        self._discard = discard
        self._load_timeout_s = load_timeout_s
        self._replacements = replacements
        self._clock = clock
        self._next_number = len(self.handles)
        self._wanted: Publication | None = None
        self._loaders: dict[str, asyncio.Task[None]] = {}
        self._replacing: set[asyncio.Task[None]] = set()
        self._replaced: dict[str, Recovery] = {}  # by replacement: whom it is for, until it serves

    def lose(self, generator_id: str, error: BaseException, *, is_innocent: bool = False) -> None:
        """Take a generator out of the pool and see to its replacement; does nothing when it is out already.

        Args:
            generator_id: the generator.
            error: how that showed.
            is_innocent: whether what it was making has nothing to do with it; the death of a node never has.
        """
        handle = self.handles.pop(generator_id, None)
        if handle is None:
            return
        at_s = self._clock()
        _log.warning("generator %s is lost: %s", generator_id, describe(error))
        self.last_error = error
        self.versions.pop(generator_id, None)
        self._discard(handle)
        replacement = self._next_id()  # before the listeners are told: somebody may be to come
        wait_s = yield_s(error, has_deputy=bool(self.handles))
        is_replaced = self._begin_replacement(generator_id, replacement, wait_s)
        is_suspicious = not is_innocent and not is_death_of_a_node(error)
        num_reissued = sum(
            listener.on_lost(generator_id, at_s, is_suspicious=is_suspicious) for listener in list(self.listeners)
        )
        cause = describe(error)
        self._replaced[replacement] = Recovery(
            "generator", generator_id, cause, at_s, self._clock(), None, num_reissued
        )
        if not is_replaced:
            self._report(replacement, None)

    def require(self, what: str) -> None:
        """Raise `GeneratorsExhaustedError`, with the last loss as its cause, where no generator is left or to come."""
        if not self.handles and not self._replacing:
            cause = "there was none" if self.last_error is None else summary_line(self.last_error)
            raise GeneratorsExhaustedError(
                f"all generators are lost, {what}; the last one: {cause}; supervision.generators.max_restarts and "
                "window_s say how many are replaced"
            ) from self.last_error

    def publish(self, publication: Publication) -> None:
        """Let every generator take a version as soon as it can."""
        self._wanted = publication
        for generator_id in self.handles:
            self._load(generator_id)

    async def settled(self) -> None:
        """Wait until every generator that is left has taken the newest version.

        Raises:
            WeightSyncError: a generator confirmed another version than it was given.
            GeneratorsExhaustedError: none is left, and none comes.
        """
        while True:
            await asyncio.gather(*self._loaders.values())
            if self.handles or not self._replacing:
                break
            await asyncio.wait(self._replacing, return_when=asyncio.FIRST_COMPLETED)
        self.require("none took a version" if self._wanted is None else f"none took version {self._wanted.version}")

    def close(self) -> None:
        """Stop loading and replacing."""
        for task in (*self._loaders.values(), *self._replacing):
            task.cancel()
        for replacement in list(self._replaced):
            self._report(replacement, None)

    def _load(self, generator_id: str) -> None:
        if generator_id not in self._loaders or self._loaders[generator_id].done():
            loader = asyncio.create_task(self._load_newest(generator_id))
            loader.add_done_callback(self._raise_elsewhere)
            self._loaders[generator_id] = loader

    async def _load_newest(self, generator_id: str) -> None:
        """Bring a generator up to the newest version, which may change while it loads."""
        while generator_id in self.handles and self._wanted is not None:
            wanted = self._wanted
            if self.versions.get(generator_id) == wanted.version:
                return
            what = f"generator {generator_id} to take version {wanted.version}"
            call = self.handles[generator_id].load_weights.remote(wanted.manifest, *wanted.chunks)
            try:
                confirmed, span = await wait_for(call, self._load_timeout_s, what)
            except (RayError, WaitTimeoutError) as error:
                if fault_of(error) is not Fault.OBJECT_LOST:
                    self.lose(generator_id, error, is_innocent=True)
                    return
                if wanted is self._wanted:
                    for listener in list(self.listeners):
                        listener.on_weights_lost(wanted.version)
                    return
                continue  # there is a newer one
            if confirmed != wanted.version:
                raise WeightSyncError(
                    f"generator {generator_id} confirmed version {confirmed} instead of {wanted.version}"
                )
            if generator_id not in self.handles:  # lost by another call in the meantime
                return
            self.versions[generator_id] = confirmed
            self._report_replacement(generator_id, confirmed)
            for listener in list(self.listeners):
                listener.on_confirmed(generator_id, confirmed, span)

    def _next_id(self) -> str:
        self._next_number += 1
        return f"generator-{self._next_number - 1}"

    def _begin_replacement(self, lost: str, replacement: str, wait_s: float = 0.0) -> bool:
        """Start a replacement, not before `wait_s`; return whether the policy allowed one."""
        if self._replacements is None:
            return False
        decision = self._replacements.policy.decide(self._clock())
        self._replacements.say(f"generator {lost} is lost: {decision.action.value}, {decision.reason}")
        if decision.action is RestartAction.RESTART:
            delay_s = max(decision.delay_s, wait_s)
            task = asyncio.create_task(self._bring_up(self._replacements, lost, replacement, delay_s))
            self._replacing.add(task)
            task.add_done_callback(lambda task: self._replacing.discard(task))
            task.add_done_callback(self._raise_elsewhere)
        return decision.action is RestartAction.RESTART

    async def _bring_up(self, replacements: Replacements, lost: str, generator_id: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        handle = replacements.start(generator_id)
        try:
            await wait_for(handle.ready.remote(), replacements.start_timeout_s, f"{generator_id} to be ready")
        except (RayError, WaitTimeoutError) as error:
            self.last_error = error
            self._discard(handle)
            again = self._next_id()
            self._replaced[again] = self._replaced.pop(generator_id)
            self._begin_replacement(lost, again)
            self._replacing = {task for task in self._replacing if task is not asyncio.current_task()}
            if not self.handles and not self._replacing:
                for listener in list(self.listeners):
                    listener.on_exhausted()
            return
        self.handles[generator_id] = handle
        for listener in list(self.listeners):
            listener.on_joined(generator_id)
        self._load(generator_id)

    def _report_replacement(self, generator_id: str, version: int) -> None:
        if generator_id in self._replaced and self._replacements is not None:
            lost, now_s = self._replaced[generator_id], self._clock()
            self._replacements.say(
                f"generator {generator_id} serves version {version}, {now_s - lost.lost_at_s:.1f} s after the loss of "
                f"{lost.actor}"
            )
            self._report(generator_id, now_s)

    def _report(self, replacement: str, serving_at_s: float | None) -> None:
        recovery = self._replaced.pop(replacement)
        if self._replacements is not None:
            self._replacements.report(replace(recovery, serving_at_s=serving_at_s))

    def _raise_elsewhere(self, task: asyncio.Task[None]) -> None:
        """Pass an error that nobody awaits to whoever waits for rollouts."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for listener in list(self.listeners):
                listener.on_failed(error)
