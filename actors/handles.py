"""Handles of the actors of a run, as the controller gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Actors:
    """Handles by role.

    Attributes:
        num_chunks: chunks of a weight publication that each rank gives.
        start_generator: makes the actor of another generator, by id; `everyone` has it too.
        started: every actor that was made, those that are lost and those that came later among them.
    """

    predictor: Any
    allocator: Any
    generators: Mapping[str, Any]
    verifiers: Sequence[Any]
    learners: Sequence[Any]
    writer: Any
    num_chunks: int
    start_generator: Callable[[str], Any]
    started: list[Any]

    def everyone(self) -> list[Any]:
        """All handles there are by now."""
        return list(self.started)
