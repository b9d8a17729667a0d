"""The learner actor: one rank of the FSDP2 group."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from vipray.learner.rendezvous import Rendezvous
from vipray.learner.trainer_protocol import LearnerRank
from vipray.records import Allocation, Span


class LearnerActor:
    """Holds one rank; every call but `health` is made on all ranks alike.

    Args:
        build: makes the rank's trainer from its rendezvous, in the actor's own process.
    """

    def __init__(self, build: Callable[[Rendezvous], LearnerRank], clock: Callable[[], float] = time.time) -> None:
        self._build = build
        self._trainer: Any = None
        self._clock = clock

    @ray.method(concurrency_group="health")
    def health(self) -> None:
        """Answer, also beside a long step: the process is there."""

    def address(self) -> tuple[str, int]:
        """Host of this rank and a port that is free on it, for the group to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def setup(self, rank: int, num_ranks: int, host: str, port: int) -> tuple[int, str]:
        """Join the group and load the model; return the chunks that a rank publishes, and a line on how it computes."""
        if host.startswith("127."):  # gloo looks its interface up by host name, which may lead elsewhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._trainer = self._build(Rendezvous(rank, num_ranks, host, port))
        return int(self._trainer.num_chunks), str(self._trainer.summary)

    def load(self, folder: str) -> int:
        """Go on from a checkpoint; return the training steps that were taken before it."""
        return int(self._trainer.load(Path(folder)))

    def train(self, allocation: Allocation, *rollouts: pa.RecordBatch) -> tuple[dict[str, float], Span]:
        """Train on a batch; return metrics, and when it was done."""
        start = self._clock()
        metrics = self._trainer.train(rollouts, allocation)
        return metrics, Span(start, self._clock())

    def publish(self, version: int) -> Iterator[Any]:
        """Yield the chunks of this rank's rows, so that one at a time is in memory, and the manifest last."""
        yield from self._trainer.publish(version)

    def save(self, root: str, step: int, keep_last: int, run: Mapping[str, Any] | None = None) -> str | None:
        """Start saving a checkpoint; return why the one before it failed, None where it did not."""
        problem: str | None = self._trainer.save(Path(root), step, keep_last, run)
        return problem

    def finish_saving(self) -> str | None:
        """Return once the last checkpoint is complete: None, or why it failed."""
        problem: str | None = self._trainer.finish_saving()
        return problem

    def shutdown(self) -> None:
        """Leave the group."""
        if self._trainer is not None:
            self._trainer.shutdown()
