"""What each generator is making, and which of them has the most room."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from vipray.records import RolloutId


@dataclass
class _Load:
    version: int | None
    making: dict[RolloutId, float] = field(default_factory=dict)  # expected tokens
    tokens: float = 0.0
    is_open: bool = True
    stamp: int = 0  # of the newest entry in the queue of those with room; older entries are void


class GeneratorLoads:
    """In-flight rollouts of each generator, under one bound on their number and one on their expected tokens.

    A generator can be closed to new rollouts: it then opens again once it makes nothing.

    Args:
        max_rollouts: largest number of a generator, >= 1.
        max_tokens: largest sum of expected tokens, > 0; a single rollout may exceed it where it is alone.

    Raises:
        ValueError: a bound that allows nothing.
    """

    def __init__(self, max_rollouts: int, max_tokens: float) -> None:
        if max_rollouts < 1 or not max_tokens > 0:
            raise ValueError(f"max_rollouts must be >= 1 and max_tokens > 0, got {max_rollouts} and {max_tokens}")
        self._max_rollouts = max_rollouts
        self._max_tokens = max_tokens
        self._loads: dict[str, _Load] = {}
        self._with_room: dict[int | None, list[tuple[float, int, str]]] = {}  # by version: heaps, least load first
        self._num_at: Counter[int | None] = Counter()
        self._stamps = 0
        self._num_closed = 0

    def __contains__(self, generator_id: str) -> bool:
        return generator_id in self._loads

    def making(self) -> dict[str, list[RolloutId]]:
        """What each generator is making."""
        return {generator_id: list(load.making) for generator_id, load in self._loads.items()}

    def making_at(self, generator_id: str) -> list[RolloutId]:
        """What one generator is making."""
        return list(self._loads[generator_id].making)

    @property
    def num_open(self) -> int:
        """Generators that may be given something."""
        return len(self._loads) - self._num_closed

    def is_open(self, generator_id: str) -> bool:
        """Whether a generator may be given something; False for one that has left."""
        load = self._loads.get(generator_id)
        return load is not None and load.is_open

    def is_idle(self, generator_id: str) -> bool:
        """Whether a generator makes nothing."""
        return not self._loads[generator_id].making

    def version(self, generator_id: str) -> int | None:
        """The version that a generator is at."""
        return self._loads[generator_id].version

    def tokens(self, generator_id: str) -> float:
        """Expected tokens of what a generator is making."""
        return self._loads[generator_id].tokens

    def versions(self) -> Iterable[int | None]:
        """Versions that generators are at."""
        return self._num_at

    def join(self, generator_id: str, version: int | None) -> None:
        """Add a generator that makes nothing yet."""
        self._loads[generator_id] = _Load(version)
        self._num_at[version] += 1
        self._offer(generator_id)

    def confirm(self, generator_id: str, version: int) -> None:
        """Note the version that a generator is at; what it is making goes on."""
        load = self._loads[generator_id]
        self._left(load.version)
        load.version = version
        self._num_at[version] += 1
        self._offer(generator_id)

    def leave(self, generator_id: str) -> None:
        """Remove a generator."""
        load = self._loads.pop(generator_id)
        self._num_closed -= not load.is_open
        self._left(load.version)

    def close(self, generator_id: str) -> None:
        """Give a generator nothing new until it makes nothing, or is opened."""
        self._set_open(generator_id, False)

    def open(self, generator_id: str) -> None:
        """Let a closed generator take rollouts again."""
        self._set_open(generator_id, True)

    def start(self, generator_id: str, rollout_ids: Iterable[RolloutId], tokens: float) -> None:
        """Add rollouts of `tokens` expected tokens each to what a generator is making."""
        load = self._loads[generator_id]
        for rollout_id in rollout_ids:
            load.tokens += tokens - load.making.get(rollout_id, 0.0)  # it may be at an attempt that was given up
            load.making[rollout_id] = tokens
        self._offer(generator_id)

    def end(self, generator_id: str, rollout_id: RolloutId) -> bool:
        """Note that a generator no longer makes a rollout. Returns False, and does nothing, if it did not."""
        load = self._loads.get(generator_id)
        if load is None or rollout_id not in load.making:
            return False
        load.tokens -= load.making.pop(rollout_id)
        if not load.making:
            load.tokens = 0.0  # sums of differences do not come back to zero
            self._num_closed -= not load.is_open
            load.is_open = True
        self._offer(generator_id)
        return True

    def least_loaded(self, versions: Iterable[int | None]) -> str | None:
        """The open generator at one of these versions with room for one more and the fewest tokens, if any."""
        tops = [top for version in versions if (top := self._top(version)) is not None]
        return min(tops)[2] if tops else None

    def room(self, generator_id: str, tokens: float) -> int:
        """How many rollouts of `tokens` expected tokens each a generator has room for."""
        load = self._loads[generator_id]
        number = int(min((self._max_tokens - load.tokens) / tokens, self._max_rollouts - len(load.making)))
        return max(number, 0) if load.making else max(number, 1)

    def _set_open(self, generator_id: str, is_open: bool) -> None:
        load = self._loads[generator_id]
        self._num_closed += load.is_open - is_open
        load.is_open = is_open
        self._offer(generator_id)

    def _left(self, version: int | None) -> None:
        self._num_at[version] -= 1
        if not self._num_at[version]:
            del self._num_at[version]
            self._with_room.pop(version, None)

    def _offer(self, generator_id: str) -> None:
        """Renew a generator's place among those with room, or take it out."""
        load = self._loads[generator_id]
        self._stamps += 1
        load.stamp = self._stamps
        if load.is_open and len(load.making) < self._max_rollouts:
            heap = self._with_room.setdefault(load.version, [])
            heapq.heappush(heap, (load.tokens, load.stamp, generator_id))

    def _top(self, version: int | None) -> tuple[float, int, str] | None:
        heap = self._with_room.get(version, [])
        while heap:
            load = self._loads.get(heap[0][2])
            if load is not None and load.stamp == heap[0][1]:
                return heap[0]
            heapq.heappop(heap)
        return None
