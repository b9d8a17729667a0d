"""Asks actors again and again whether they are there; one that does not answer is taken for dead.

The question has a concurrency group of its own in every actor, so that it is answered beside a long step or a full
queue. What is found here is what no call would show: actors that have nothing to do, and processes that stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, fault_of
from actors.waiting import wait_for
from vipray.errors import WaitTimeoutError


@dataclass(frozen=True)
class Watched:
    """An actor, and what is to be done once it is known to be gone."""

    name: str
    handle: Any
    lose: Callable[[BaseException], None]


class HealthMonitor:
    """Asks everybody at once, and waits for no answer before it asks the others again.

    Args:
        watched: who is to be asked now.
        interval_s: between two questions.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, watched: Callable[[], Iterable[Watched]], interval_s: float, timeout_s: float) -> None:
        self._watched = watched
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._asked: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Ask until cancelled. Raises, in a group, whatever an answer raises that is no loss."""
        async with asyncio.TaskGroup() as asking:
            while True:
                await asyncio.sleep(self._interval_s)
                for actor in self._watched():
                    asked = self._asked.get(actor.name)
                    if asked is None or asked.done():
                        self._asked[actor.name] = asking.create_task(self._ask(actor))

    async def _ask(self, actor: Watched) -> None:
        try:
            await wait_for(actor.handle.health.remote(), self._timeout_s, f"{actor.name} to say that it is there")
        except (RayError, WaitTimeoutError) as error:
            if fault_of(error) is not Fault.ACTOR_LOST:
                raise
            actor.lose(error)
