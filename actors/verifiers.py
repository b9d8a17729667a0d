"""The verifier pool: verdicts from whoever is there, and from another one where a verifier is lost.

A rollout that was under way at verifiers that were lost is a suspect, as are those that were beside it; the last try is
made alone, so that only the one that is to blame is set aside. The death of a node says nothing about a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, fault_of, is_death_of_a_node
from actors.seat import Seat
from actors.waiting import wait_for
from vipray.errors import ActorLostError, ObjectGoneError, WaitTimeoutError, summary_line
from vipray.records import Verdict

VERDICTS_AT_ONCE = 4  # of one verifier: enough to keep it busy, few enough for a deadline to mean one verdict


class Verifiers:
    """Seats of all verifiers, used in turn.

    Args:
        seats: at least one.
        verdict_s: longest wait for one verdict.
        max_kills: verifiers that one rollout may bring down; then it is set aside.
    """

    def __init__(self, seats: Sequence[Seat], verdict_s: float, max_kills: int) -> None:
        self.seats = tuple(seats)
        self._verdict_s = verdict_s
        self._max_kills = max_kills
        self._slots = {seat.name: asyncio.Semaphore(VERDICTS_AT_ONCE) for seat in seats}
        self._alone = asyncio.Lock()  # two suspects must not each wait for what the other has
        self._turn = 0
        for seat in seats:  # what one had is scored by another at once
            seat.has_deputy = self._is_any_held

    async def score(self, row: Any) -> tuple[Any, Verdict]:
        """Have a rollout scored; return references to the scored rollout and its verdict.

        A rollout that brought down as many verifiers as it may gets the outcome `error`.

        Raises:
            ObjectGoneError: the rollout itself is lost.
            ActorLostError: no verifier is left or to come.
        """
        kills = 0
        while kills < self._max_kills:
            async with self._place(is_alone=kills == self._max_kills - 1) as (seat, holder):
                scored, verdict = holder.score.options(num_returns=2).remote(row)
                try:
                    return scored, await wait_for(verdict, self._verdict_s, "the verdict of a rollout")
                except (RayError, WaitTimeoutError) as error:
                    self._take_note(seat, holder, error)
                    kills += not is_death_of_a_node(error)
        return await self._set_aside(row)

    def close(self) -> None:
        """Give up replacements under way."""
        for seat in self.seats:
            seat.close()

    async def _set_aside(self, row: Any) -> tuple[Any, Verdict]:
        reason = f"{self._max_kills} verifiers were lost while they scored it"
        while True:
            async with self._place(is_alone=False) as (seat, holder):
                scored, verdict = holder.set_aside.options(num_returns=2).remote(row, reason)
                try:
                    return scored, await wait_for(verdict, self._verdict_s, "a rollout to be set aside")
                except (RayError, WaitTimeoutError) as error:
                    self._take_note(seat, holder, error)

    @asynccontextmanager
    async def _place(self, *, is_alone: bool) -> AsyncIterator[tuple[Seat, Any]]:
        """A place at a verifier that is there, or all of its places."""
        while True:
            seat = self._next()
            async with self._taken(seat, is_alone=is_alone):
                if not seat.is_held and self._is_any_held():
                    continue  # it was lost while others waited for it
                try:
                    holder = await seat.holder()
                except ActorLostError:
                    if all(other.has_given_up for other in self.seats):
                        raise
                    continue
                yield seat, holder
                return

    @asynccontextmanager
    async def _taken(self, seat: Seat, *, is_alone: bool) -> AsyncIterator[None]:
        slots = self._slots[seat.name]
        if not is_alone:
            async with slots:
                yield
            return
        number = 0
        try:
            async with self._alone:
                while number < VERDICTS_AT_ONCE:
                    await slots.acquire()
                    number += 1
            yield
        finally:
            for _ in range(number):
                slots.release()

    def _take_note(self, seat: Seat, holder: Any, error: Exception) -> None:
        fault = fault_of(error)
        if fault is Fault.RAISED:
            raise error
        if fault is Fault.OBJECT_LOST:
            raise ObjectGoneError(f"a rollout is lost: {summary_line(error)}") from error
        seat.lose(holder, error)

    def _is_any_held(self) -> bool:
        return any(seat.is_held for seat in self.seats)

    def _next(self) -> Seat:
        """The next verifier in turn that is there; else one that is to come; else any."""
        order = [self.seats[(self._turn + place) % len(self.seats)] for place in range(len(self.seats))]
        to_come = [seat for seat in order if not seat.has_given_up]
        chosen = next((seat for seat in order if seat.is_held), (to_come or order)[0])
        self._turn = self.seats.index(chosen) + 1
        return chosen
