"""Handles of the actors of a run, and who makes others in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Ranks:
    """A learner group that has been set up.

    Attributes:
        handles: in the order of ranks.
        num_chunks: chunks of a publication that each rank gives.
        summary: one line about how they compute.
    """

    handles: tuple[Any, ...]
    num_chunks: int
    summary: str


class ActorStarter(Protocol):
    """Makes actors; those of single roles are not ready yet, a group of ranks is."""

    def predictor(self) -> Any:
        """Make a predictor without any history."""

    def allocator(self) -> Any:
        """Make an allocator."""

    def verifier(self) -> Any:
        """Make a verifier."""

    def writer(self) -> Any:
        """Make a rollout writer on the driver's node."""

    def generator(self, generator_id: str) -> Any:
        """Make a generator; it has no weights yet."""

    async def learners(self) -> Ranks:
        """Make a learner group, which has the model's own weights."""


@dataclass(frozen=True)
class Actors:
    """Handles by role, all of them ready.

    Attributes:
        start: makes others.
        started: every actor that was made, those that are lost and those that came later among them.
    """

    predictor: Any
    allocator: Any
    generators: Mapping[str, Any]
    verifiers: Sequence[Any]
    learners: Ranks
    writer: Any
    start: ActorStarter
    started: list[Any]
