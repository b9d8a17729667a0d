"""Rows of a sharded tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def shard_bounds(num_rows: int, num_ranks: int) -> list[tuple[int, int]]:
    """First row and end of each rank's share of a tensor, as `torch.chunk` and FSDP2 split it.

    >>> shard_bounds(5, 3)
    [(0, 2), (2, 4), (4, 5)]
    """
    size = -(-num_rows // num_ranks)
    return [(min(rank * size, num_rows), min((rank + 1) * size, num_rows)) for rank in range(num_ranks)]


def local_rows(tensor: Any) -> tuple[int, torch.Tensor]:
    """First row and rows that this rank holds of a tensor; views of it.

    A tensor that every rank has whole, such as a buffer, is cut the same way, so that the ranks together have it once.
    """
    bounds = shard_bounds(len(tensor) if tensor.dim() else 1, dist.get_world_size())
    start, end = bounds[dist.get_rank()]
    if hasattr(tensor, "to_local"):
        return start, tensor.detach().to_local()
    return start, tensor.detach().reshape(-1, *tensor.shape[1:])[start:end]
