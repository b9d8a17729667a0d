"""The ledger of a step: each rollout is pending, in flight at one generator, done, or set aside.

It is counted at most once, and exactly once unless it is set aside or the step is closed without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vipray.records import RolloutId


class Ledger:
    """Accounts for the rollouts of one step.

    Args:
        rollout_ids: the rollouts to be made; the step is complete when exactly these are done.

    Raises:
        ValueError: an id occurs twice.
    """

    def __init__(self, rollout_ids: Iterable[RolloutId]) -> None:
        ids = list(rollout_ids)
        self._pending: dict[RolloutId, None] = dict.fromkeys(ids)  # a dict keeps the order
        self._in_flight: dict[RolloutId, str] = {}
        self._handed_over: set[RolloutId] = set()  # of those in flight
        self._done: set[RolloutId] = set()
        self._dropped: set[RolloutId] = set()
        self._set_aside: dict[RolloutId, None] = {}
        self._num_reissued = 0
        self._num_duplicates = 0
        if len(self._pending) != len(ids):
            raise ValueError(f"{len(ids) - len(self._pending)} rollout ids occur twice")

    def __contains__(self, rollout_id: RolloutId) -> bool:
        settled = rollout_id in self._done or rollout_id in self._dropped or rollout_id in self._set_aside
        return settled or self.is_due(rollout_id)

    @property
    def pending(self) -> list[RolloutId]:
        """Rollouts that no generator is making, in the order in which they are due."""
        return list(self._pending)

    @property
    def unfinished(self) -> list[RolloutId]:
        """Rollouts that are pending or in flight."""
        return [*self._pending, *self._in_flight]

    @property
    def is_complete(self) -> bool:
        """Whether every rollout of the step is done, set aside, or dropped."""
        return not self._pending and not self._in_flight

    @property
    def set_aside(self) -> list[RolloutId]:
        """Rollouts that are not made any more."""
        return list(self._set_aside)

    def is_set_aside(self, rollout_id: RolloutId) -> bool:
        """Whether a rollout is not made any more."""
        return rollout_id in self._set_aside

    def is_due(self, rollout_id: RolloutId) -> bool:
        """Whether a result of the rollout would be counted."""
        return rollout_id in self._pending or rollout_id in self._in_flight

    def issue(self, rollout_id: RolloutId, generator_id: str) -> None:
        """Note that a generator makes a pending rollout. Raises `ValueError` if it is not pending."""
        if rollout_id not in self._pending:
            raise ValueError(f"{rollout_id} is not pending and cannot be issued to {generator_id}")
        del self._pending[rollout_id]
        self._in_flight[rollout_id] = generator_id

    def complete(self, rollout_id: RolloutId) -> bool:
        """Count a finished rollout. Returns False, and counts nothing, when it was settled before.

        A result may come late, from a generator that was given up: it is as good as any, and the rollout is then no
        longer pending. Raises `ValueError` for a rollout that is not of this step.
        """
        if rollout_id in self._done or rollout_id in self._dropped:
            self._num_duplicates += 1
            return False
        if rollout_id in self._set_aside:
            return False
        if rollout_id in self._pending:
            del self._pending[rollout_id]
        elif rollout_id in self._in_flight:
            del self._in_flight[rollout_id]
            self._handed_over.discard(rollout_id)
        else:
            raise ValueError(f"{rollout_id} is not of this step")
        self._done.add(rollout_id)
        return True

    def give_up(self, generator_id: str) -> list[RolloutId]:
        """Make the unfinished rollouts of a lost generator pending again and return them."""
        held = [rollout_id for rollout_id, at in self._in_flight.items() if at == generator_id]
        lost = [rollout_id for rollout_id in held if rollout_id not in self._handed_over]
        for rollout_id in lost:
            del self._in_flight[rollout_id]
            self._pending[rollout_id] = None
        self._num_reissued += len(lost)
        return lost

    def hand_over(self, rollout_id: RolloutId, generator_id: str) -> None:
        """Note that a rollout in flight at a generator has left it, whose loss no longer concerns it."""
        if self._in_flight.get(rollout_id) == generator_id:
            self._handed_over.add(rollout_id)

    def reissue(self, rollout_id: RolloutId, generator_id: str) -> bool:
        """Make a rollout pending again whose result from a generator is lost or of no use.

        Returns False, and does nothing, when the rollout is not in flight there: somebody else makes it already.
        """
        if self._in_flight.get(rollout_id) != generator_id:
            return False
        del self._in_flight[rollout_id]
        self._handed_over.discard(rollout_id)
        self._pending[rollout_id] = None
        self._num_reissued += 1
        return True

    def put_aside(self, rollout_id: RolloutId) -> bool:
        """Do without a rollout for good. Returns False, and does nothing, when it is not due."""
        if not self.is_due(rollout_id):
            return False
        self._pending.pop(rollout_id, None)
        self._in_flight.pop(rollout_id, None)
        self._handed_over.discard(rollout_id)
        self._set_aside[rollout_id] = None
        return True

    def drop_unfinished(self) -> list[RolloutId]:
        """Do without what is not done, and return it: the step is complete with what there is."""
        dropped = self.unfinished
        self._dropped.update(dropped)
        self._pending.clear()
        self._in_flight.clear()
        return dropped

    def metrics(self) -> dict[str, float]:
        """How many rollouts were issued again, dropped, or set aside, and how many results came twice."""
        return {
            "reissued": float(self._num_reissued),
            "duplicates": float(self._num_duplicates),
            "dropped": float(len(self._dropped)),
            "set_aside": float(len(self._set_aside)),
        }
