"""The verifier pool: verdicts from whoever is there, and from another one where a verifier is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, fault_of
from actors.seat import Seat
from actors.waiting import wait_for
from vipray.errors import ObjectGoneError, WaitTimeoutError, summary_line
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
        self._turn = itertools.cycle(self.seats)

    async def score(self, row: Any) -> tuple[Any, Verdict]:
        """Have a rollout scored; return references to the scored rollout and its verdict.

        A rollout that brought down as many verifiers as it may gets the outcome `error`.

        Raises:
            ObjectGoneError: the rollout itself is lost.
            ActorLostError: no verifier is left or to come.
        """
        for _ in range(self._max_kills):
            seat = self._next()
            async with self._slots[seat.name]:
                holder = await seat.holder()
                scored, verdict = holder.score.options(num_returns=2).remote(row)
                try:
                    return scored, await wait_for(verdict, self._verdict_s, "the verdict of a rollout")
                except (RayError, WaitTimeoutError) as error:
                    self._take_note(seat, holder, error)
        return await self._set_aside(row)

    def close(self) -> None:
        """Give up replacements under way."""
        for seat in self.seats:
            seat.close()

    async def _set_aside(self, row: Any) -> tuple[Any, Verdict]:
        reason = f"{self._max_kills} verifiers were lost while they scored it"
        while True:
            seat = self._next()
            holder = await seat.holder()
            scored, verdict = holder.set_aside.options(num_returns=2).remote(row, reason)
            try:
                return scored, await wait_for(verdict, self._verdict_s, "a rollout to be set aside")
            except (RayError, WaitTimeoutError) as error:
                self._take_note(seat, holder, error)

    def _take_note(self, seat: Seat, holder: Any, error: Exception) -> None:
        fault = fault_of(error)
        if fault is Fault.RAISED:
            raise error
        if fault is Fault.OBJECT_LOST:
            raise ObjectGoneError(f"a rollout is lost: {summary_line(error)}") from error
        seat.lose(holder, error)

    def _next(self) -> Seat:
        """The next verifier that is there, or just the next one."""
        turns = [next(self._turn) for _ in self.seats]
        return next((seat for seat in turns if seat.is_held), turns[0])
