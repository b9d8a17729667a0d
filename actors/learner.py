"""The learner actor: one rank of the FSDP2 group."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray

from vipray.records import Allocation, Span

if TYPE_CHECKING:
    from vipray.learner.trainer import Rendezvous, Trainer


class LearnerActor:
    """Holds one rank; every call is made on all ranks alike.

    Args:
        build: makes the rank's trainer from its rendezvous, in the actor's own process.
    """

    def __init__(self, build: Callable[[Rendezvous], Trainer], clock: Callable[[], float] = time.time) -> None:
        self._build = build
        self._trainer: Any = None
        self._clock = clock

    def address(self) -> tuple[str, int]:
        """Host of this rank and a port that is free on it, for the group to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def setup(self, rank: int, num_ranks: int, host: str, port: int) -> int:
        """Join the group and load the model; return the number of chunks of a publication."""
        from vipray.learner.trainer import Rendezvous

        if host.startswith("127."):  # gloo looks its interface up by host name, which may lead elsewhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._trainer = self._build(Rendezvous(rank, num_ranks, host, port))
        return int(self._trainer.num_chunks)

    def train(self, allocation: Allocation, *rollouts: pa.RecordBatch) -> tuple[dict[str, float], Span]:
        """Take one optimiser step; return its metrics and when it was taken."""
        start = self._clock()
        metrics = self._trainer.train(rollouts, allocation)
        return metrics, Span(start, self._clock())

    def publish(self, version: int) -> Any:
        """Return the manifest and then each chunk on rank 0, None on the others."""
        published = self._trainer.publish(version)
        return None if published is None else (published[0], *published[1])

    def shutdown(self) -> None:
        """Leave the group."""
        if self._trainer is not None:
            self._trainer.shutdown()
