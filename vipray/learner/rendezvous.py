"""Where the ranks of a learner group meet. Without torch, so that whoever starts them can say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a group meet."""

    rank: int
    num_ranks: int
    host: str
    port: int
