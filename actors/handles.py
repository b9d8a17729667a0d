"""Handles of the actors of a run, as the controller gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Actors:
    """Handles by role. `num_chunks` is the number of chunks of a weight publication."""

    predictor: Any
    allocator: Any
    generators: Mapping[str, Any]
    verifiers: Sequence[Any]
    learners: Sequence[Any]
    writer: Any
    num_chunks: int

    def everyone(self) -> list[Any]:
        """All handles."""
        single = [self.predictor, self.allocator, self.writer]
        return [*single, *self.generators.values(), *self.verifiers, *self.learners]
