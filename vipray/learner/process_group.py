"""The process group of the learner's ranks: meeting, a roll call before each step, errors that say who and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from vipray.errors import LearnerGroupError, VipRayError
from vipray.learner.rendezvous import Rendezvous

__all__ = ["ProcessGroup", "Rendezvous"]


class ProcessGroup:
    """This rank's membership in the group.

    Args:
        rendezvous: where to meet.
        device_type: `cpu` (gloo) or `cuda` (NCCL, with gloo for what lies in main memory).
        timeout_s: longest wait of a collective.
    """

    def __init__(self, rendezvous: Rendezvous, device_type: str, timeout_s: float) -> None:
        self.rank = rendezvous.rank
        self.num_ranks = rendezvous.num_ranks
        self.timeout = timedelta(seconds=timeout_s)
        with self.named("joining the group"):
            dist.init_process_group(
                "gloo" if device_type == "cpu" else "cpu:gloo,cuda:nccl",
                init_method=f"tcp://{rendezvous.host}:{rendezvous.port}",
                rank=self.rank,
                world_size=self.num_ranks,
                timeout=self.timeout,
            )
            self._roll = dist.new_group(backend="gloo", timeout=self.timeout)
        self.mesh: DeviceMesh = init_device_mesh(device_type, (self.num_ranks,))

    def roll_call(self, what: str) -> None:
        """Wait for every rank.

        Raises:
            LearnerGroupError: one did not come in time; rank 0 says which.
        """
        with self.named(what):
            dist.monitored_barrier(self._roll, timeout=self.timeout, wait_all_ranks=True)

    @contextmanager
    def named(self, what: str) -> Iterator[None]:
        """Give errors of collectives a name: which rank met them, and while doing what."""
        try:
            yield
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError | VipRayError):
                raise
            hint = (
                f"; collectives wait learner.collective_timeout_s={self.timeout.total_seconds():g}"
                if any(word in str(error).lower() for word in ("timed out", "monitoredbarrier"))
                else ""
            )
            where = f"learner rank {self.rank} of {self.num_ranks}, {what}"
            raise LearnerGroupError(f"{where}: {_first_line(error)}{hint}") from error

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        dist.all_reduce(values)
        return values

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """Largest over the ranks, in place."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank; a collective."""
        return bool(self.max(torch.tensor([float(value)])).item())

    def leave(self) -> None:
        """Leave the group; nothing happens to who has left already."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
