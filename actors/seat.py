"""A seat is held by one actor at a time; a call that fails with its holder is made again at the next one.

call ──► holder ── dies, or does not answer ──► lose ──► policy: back off, start, restore ──► holder ──► call again
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, describe, fault_of, yield_s
from actors.waiting import wait_for
from vipray.dispatch.restarts import RestartAction, RestartPolicy
from vipray.errors import ActorLostError, WaitTimeoutError
from vipray.records import Recovery

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Supervision:
    """How the actors of one kind are replaced.

    Attributes:
        kind: as in `Recovery.kind`.
        setting: section of the configuration that has the policy.
        policy: whether and when.
        start_timeout_s: longest wait for a replacement to be ready.
        discard: ends an actor at once.
        report: is told of every recovery.
        clock: wall-clock seconds.
    """

    kind: str
    setting: str
    policy: RestartPolicy
    start_timeout_s: float
    discard: Callable[[Any], None]
    report: Callable[[Recovery], None]
    clock: Callable[[], float] = time.time

    async def next_restart(self, actor: str, error: BaseException) -> None:
        """Wait until a replacement may be started.

        Raises:
            ActorLostError: the budget is spent.
        """
        decision = self.policy.decide(self.clock())
        _log.warning("%s is lost: %s; %s, %s", actor, describe(error), decision.action.value, decision.reason)
        if decision.action is RestartAction.GIVE_UP:
            raise ActorLostError(
                f"{actor} is lost ({describe(error)}) and not replaced: {decision.reason}; "
                f"{self.setting}.max_restarts allows more"
            ) from error
        await asyncio.sleep(decision.delay_s)


class Seat:
    """A place that is held by one actor at a time.

    Args:
        name: of its holders, in messages.
        handle: the first holder, ready.
        start: makes the next one.
        supervision: how losses are made good.

    `restore` brings a new holder to the state of the lost one, where that has any. `has_deputy` says whether somebody
    else takes over what a lost holder had, until there is a new one.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        start: Callable[[], Any],
        supervision: Supervision,
    ) -> None:
        self.name = name
        self.restore: Callable[[Any], Awaitable[None]] | None = None
        self.has_deputy: Callable[[], bool] = lambda: False
        self.handle = handle  # may be dead: calls then give references that fail
        self._start = start
        self._supervision = supervision
        self._replacing: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether there is a holder that nobody has found dead."""
        return self._replacing is None

    @property
    def has_given_up(self) -> bool:
        """Whether there will be no holder any more."""
        return self._replacing is not None and self._replacing.done()

    async def holder(self) -> Any:
        """The holder, once there is one. Raises `ActorLostError` where there will be none."""
        while self._replacing is not None:
            await asyncio.shield(self._replacing)
        return self.handle

    async def call(self, invoke: Callable[[Any], Any], timeout_s: float, what: str) -> Any:
        """Make a call and wait for its answer; after a loss, make it again at the next holder.

        Args:
            invoke: makes the call at a holder and returns its reference; it may be made more than once.
            timeout_s: longest wait for an answer; a holder that takes longer is taken for hung.
            what: is waited for, in messages.

        Raises:
            ActorLostError: the holder was lost, and is not replaced any more.
            RayError: what the call itself raised, or the loss of an object that it needs.
        """
        while True:
            holder = await self.holder()
            try:
                return await wait_for(invoke(holder), timeout_s, what)
            except (RayError, WaitTimeoutError) as error:
                if fault_of(error) is not Fault.ACTOR_LOST:
                    raise
                self.lose(holder, error)

    def lose(self, holder: Any, error: BaseException) -> None:
        """Begin to replace a holder; does nothing for one that holds the seat no longer."""
        if holder is not self.handle or self._replacing is not None:
            return
        self._supervision.discard(holder)
        self._replacing = asyncio.create_task(self._replace(error))
        self._replacing.add_done_callback(retrieved)

    def close(self) -> None:
        """Give up a replacement under way."""
        if self._replacing is not None:
            self._replacing.cancel()

    async def _replace(self, error: BaseException) -> None:
        supervision = self._supervision
        lost_at_s = supervision.clock()
        has_deputy = self.has_deputy()
        reissued_at_s = lost_at_s if has_deputy else None
        await asyncio.sleep(yield_s(error, has_deputy=has_deputy))
        while True:
            await supervision.next_restart(self.name, error)
            handle = self._start()
            try:
                await wait_for(handle.ready.remote(), supervision.start_timeout_s, f"a new {self.name} to be ready")
                if self.restore is not None:
                    await self.restore(handle)
                break
            except (RayError, WaitTimeoutError) as next_error:
                supervision.discard(handle)
                error = next_error
        # Nothing may be awaited between the end of `restore` and here: calls made meanwhile would be lost.
        self.handle = handle
        self._replacing = None
        now_s = supervision.clock()
        cause, reissued_at_s = describe(error), now_s if reissued_at_s is None else reissued_at_s
        supervision.report(Recovery(supervision.kind, self.name, cause, lost_at_s, reissued_at_s, now_s))


def retrieved(task: asyncio.Task[None]) -> None:
    """Mark the failure of a replacement as seen: whoever asks for the actor gets it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("no replacement: %s", describe(error))
