"""What is killed when: moments of a Poisson process, and a kind among those that may be killed at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# How often each kind is chosen. A node or a driver takes its actors with it, and what they come back with takes longer.
_WEIGHTS = {
    "generator": 8.0,
    "verifier": 4.0,
    "learner": 3.0,
    "predictor": 2.0,
    "allocator": 2.0,
    "node": 1.5,
    "driver": 1.0,
}
KILLED = tuple(_WEIGHTS)


@dataclass(frozen=True)
class Moment:
    """What a run is like at a moment.

    Attributes:
        actors: living actors, by kind.
        node_actors: living actors of each node that is up, by kind; the head is not among them.
        is_node_missing: whether a node was killed and its replacement is not up yet.
        is_training: whether the driver has completed a step since it was started.
        has_new_checkpoint: whether it has completed a checkpoint since then, so that it does not repeat itself.
    """

    actors: dict[str, int]
    node_actors: Sequence[dict[str, int]]
    is_node_missing: bool
    is_training: bool
    has_new_checkpoint: bool


def killable_nodes(moment: Moment) -> list[int]:
    """Nodes that hold actors, and not every generator; none while another one is missing."""
    if moment.is_node_missing:
        return []
    generators = moment.actors.get("generator", 0)
    return [
        index
        for index, actors in enumerate(moment.node_actors)
        if sum(actors.values()) and actors.get("generator", 0) < generators
    ]


def killable(kinds: Sequence[str], moment: Moment, num_generators: int) -> list[str]:
    """The kinds among `kinds` that may be killed now.

    Nothing is killed before the driver trains: what cannot start is another matter than what is lost. A generator
    stays alive, if the run has more than one.
    """
    if not moment.is_training:
        return []
    least = {"generator": min(2, num_generators)}
    found = []
    for kind in kinds:
        if kind == "node":
            may = bool(killable_nodes(moment))
        elif kind == "driver":
            may = moment.has_new_checkpoint
        else:
            may = moment.actors.get(kind, 0) >= least.get(kind, 1)
        if may:
            found.append(kind)
    return found


class Schedule:
    """Draws waits and kinds from a seed.

    Args:
        seed: of all draws.
        interval_s: mean time between two kills.
    """

    def __init__(self, seed: int, interval_s: float) -> None:
        self._rng = np.random.default_rng([seed, 0xC4A05])
        self._interval_s = interval_s

    def wait_s(self) -> float:
        """Draw the time until the next kill."""
        return float(self._rng.exponential(self._interval_s))

    def kind(self, kinds: Sequence[str]) -> str:
        """Choose one of `kinds`, by weight."""
        weights = np.array([_WEIGHTS[kind] for kind in kinds])
        return kinds[int(self._rng.choice(len(kinds), p=weights / weights.sum()))]

    def index(self, count: int) -> int:
        """Choose one of `count` things."""
        return int(self._rng.integers(count))
