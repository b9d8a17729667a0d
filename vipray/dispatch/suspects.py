"""Which rollouts may be what brings generators down: who is made alone, and who is not made any more.

A generator that dies takes all that it was making with it, and says of none of it that it was the cause. So deaths
are only counted, until a rollout was there often enough to be suspected; it then has a generator to itself, and
another death convicts it or its completion clears it. An engine that raises names the rollout: nothing is left to
find out.

    kills < max_kills - 1                            made like any other
    kills >= max_kills - 1, and >= 1                 a suspect: made alone
    kills >= max_kills, the last alone or certain    set aside: made no more
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from vipray.records import RolloutId


class Suspects:
    """Counts, for each rollout, the generators that were lost with it.

    Args:
        max_kills: losses after which a rollout is set aside, >= 1.

    Raises:
        ValueError: a number that allows no loss.

    >>> suspects, poison, other = Suspects(max_kills=2), RolloutId(0, "a", 0), RolloutId(0, "a", 1)
    >>> suspects.note_loss([poison, other])
    >>> suspects.is_suspect(poison), suspects.is_suspect(other)
    (True, True)
    >>> suspects.note_loss([poison])
    >>> suspects.is_set_aside(poison), suspects.reason(poison)
    (True, '2 generators were lost while they made it')
    """

    def __init__(self, max_kills: int) -> None:
        if max_kills < 1:
            raise ValueError(f"max_kills must be >= 1, got {max_kills}")
        self._max_kills = max_kills
        self._kills: Counter[RolloutId] = Counter()
        self._blamed: set[RolloutId] = set()
        self._set_aside: set[RolloutId] = set()

    def note_loss(self, rollout_ids: Collection[RolloutId]) -> None:
        """Count the death of a generator for all that it was making; a single one, seen often enough, is to blame."""
        self._kills.update(rollout_ids)
        if len(rollout_ids) == 1:
            self._convict(next(iter(rollout_ids)))

    def blame(self, rollout_id: RolloutId) -> None:
        """Count a failure that is certain to be this rollout's, whatever else was under way."""
        self._kills[rollout_id] += 1
        self._blamed.add(rollout_id)
        self._convict(rollout_id)

    def is_suspect(self, rollout_id: RolloutId) -> bool:
        """Whether a rollout is to be made alone, if it is made at all."""
        return self._kills[rollout_id] >= max(self._max_kills - 1, 1)

    def is_set_aside(self, rollout_id: RolloutId) -> bool:
        """Whether a rollout is not to be made any more."""
        return rollout_id in self._set_aside

    def reason(self, rollout_id: RolloutId) -> str:
        """Why a rollout is set aside."""
        failed = "lost or failed" if rollout_id in self._blamed else "lost"
        kills = self._kills[rollout_id]
        return (
            f"1 generator was {failed} while it made it"
            if kills == 1
            else f"{kills} generators were {failed} while they made it"
        )

    def forget(self, step: int) -> None:
        """Forget the rollouts of a step that is over."""
        gone = [rollout_id for rollout_id in self._kills if rollout_id.step == step]
        for rollout_id in gone:
            del self._kills[rollout_id]
        self._blamed.difference_update(gone)
        self._set_aside.difference_update(gone)

    def _convict(self, rollout_id: RolloutId) -> None:
        if self._kills[rollout_id] >= self._max_kills:
            self._set_aside.add(rollout_id)
