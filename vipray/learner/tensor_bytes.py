"""Tensors as bytes and back: the wire format of a published policy version.

A version is a few flat chunks of bytes and a manifest that says where each tensor lies. Each rank writes the rows that
it holds, so that nobody gathers a tensor to publish it: the chunks of all ranks with the same group number together
hold whole tensors, in the order of the model's layers, and a reader loads one group after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vipray.arrays import ByteArray
from vipray.learner.shards import shard_bounds
from vipray.records import TensorEntry, TensorPiece, WeightManifest


def plan_manifest(
    shapes: Sequence[tuple[str, tuple[int, ...]]], dtype: torch.dtype, chunk_nbytes: int, num_ranks: int = 1
) -> WeightManifest:
    """Lay tensors out in groups of at most `chunk_nbytes` (a larger tensor has a group of its own).

    The manifest carries version -1; each publication replaces it.
    """
    entries: list[TensorEntry] = []
    sizes: list[int] = []
    filled = chunk_nbytes  # of the last group
    for name, shape in shapes:
        rows, *rest = shape or (1,)
        row_nbytes = int(np.prod(rest, dtype=np.int64)) * dtype.itemsize
        if not sizes or (filled and filled + rows * row_nbytes > chunk_nbytes):
            sizes += [0] * num_ranks
            filled = 0
        filled += rows * row_nbytes
        pieces = []
        for chunk, (start, end) in enumerate(shard_bounds(rows, num_ranks), start=len(sizes) - num_ranks):
            pieces.append(TensorPiece(chunk, sizes[chunk], (end - start) * row_nbytes))
            sizes[chunk] += pieces[-1].nbytes
        entries.append(TensorEntry(name, _dtype_name(dtype), tuple(shape), tuple(pieces)))
    return WeightManifest(-1, tuple(entries), tuple(sizes), num_ranks)


def fill_chunks(manifest: WeightManifest, rank: int, shards: Iterable[torch.Tensor]) -> Iterator[ByteArray]:
    """Write the rows that a rank holds, given tensor by tensor in the manifest's order, and yield chunk by chunk.

    Raises:
        ValueError: a shard is not of the dtype or size that the manifest says.
    """
    remaining = iter(shards)
    for group in range(manifest.num_groups):
        chunk = np.empty(manifest.chunk_nbytes[manifest.chunks_of(group)[rank]], np.uint8)
        for entry in manifest.entries_of(group):
            piece, shard = entry.pieces[rank], next(remaining)
            if shard.nbytes != piece.nbytes or _dtype_name(shard.dtype) != entry.dtype:
                raise ValueError(f"rank {rank} has {shard.dtype} {tuple(shard.shape)} of {entry.name}, not {piece}")
            raw = shard.contiguous().view(-1).view(torch.uint8)
            chunk[piece.offset : piece.offset + piece.nbytes] = raw.numpy()
        yield chunk
    if next(remaining, None) is not None:
        raise ValueError("there are more tensors than the manifest lists")


def tensors_in(entries: Iterable[TensorEntry], chunks: Mapping[int, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(name, tensor)` from the chunks, by number, that hold their pieces.

    A tensor of one piece is a view that keeps its chunk alive and must not be written to; others are put together.
    """
    flat = {number: _as_tensor(chunk) for number, chunk in chunks.items() if len(chunk)}
    for entry in entries:
        pieces = [flat[p.chunk][p.offset : p.offset + p.nbytes] for p in entry.pieces if p.nbytes]
        raw = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        yield entry.name, raw.view(getattr(torch, entry.dtype)).view(entry.shape)


def _as_tensor(buffer: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=torch.uint8)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
