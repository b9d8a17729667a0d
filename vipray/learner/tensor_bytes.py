"""Tensors as bytes and back: the wire format of a published policy version.

A version is a few flat chunks of bytes and a manifest that says where each tensor lies. Chunks hold whole tensors,
in the order of the model's layers, so that a reader can load one chunk after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from vipray.arrays import ByteArray
from vipray.records import TensorEntry, WeightManifest

_BF16_DROPPED_BITS = 16  # a float32 has 16 mantissa bits more than a bfloat16


def plan_manifest(
    shapes: Sequence[tuple[str, tuple[int, ...]]], dtype: torch.dtype, chunk_nbytes: int
) -> WeightManifest:
    """Lay tensors out in chunks of at most `chunk_nbytes` (a larger tensor has a chunk of its own).

    The manifest carries version -1; each publication replaces it.
    """
    entries: list[TensorEntry] = []
    sizes: list[int] = []
    for name, shape in shapes:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not sizes or (sizes[-1] and sizes[-1] + nbytes > chunk_nbytes):
            sizes.append(0)
        entries.append(TensorEntry(name, _dtype_name(dtype), tuple(shape), len(sizes) - 1, sizes[-1], nbytes))
        sizes[-1] += nbytes
    return WeightManifest(-1, tuple(entries), tuple(sizes))


def fill_chunks(manifest: WeightManifest, tensors: Iterable[torch.Tensor]) -> list[ByteArray]:
    """Write `tensors`, given in the manifest's order and dtype, into fresh chunks."""
    chunks = [np.empty(size, np.uint8) for size in manifest.chunk_nbytes]
    for entry, tensor in zip(manifest.entries, tensors, strict=True):
        if tuple(tensor.shape) != entry.shape or _dtype_name(tensor.dtype) != entry.dtype:
            raise ValueError(f"{entry.name} is {tensor.dtype} {tuple(tensor.shape)}, the manifest says {entry}")
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        chunks[entry.chunk][entry.offset : entry.offset + entry.nbytes] = raw
    return chunks


def tensors_in(buffer: Any, entries: Iterable[TensorEntry]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(name, tensor)` views of `buffer`, without a copy. They keep the buffer alive; do not write to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(buffer, dtype=torch.uint8)
    for entry in entries:
        raw = flat[entry.offset : entry.offset + entry.nbytes]
        yield entry.name, raw.view(getattr(torch, entry.dtype)).view(entry.shape)


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Round float32 to bfloat16, up or down with probabilities that make the result unbiased.

    Rounding to nearest returns the old weight as long as an update is below half a step of the bfloat16 grid, on
    which released models lie, so that small updates never reach the engine. Adding uniform noise to the bits that
    are dropped, then truncating, carries with exactly the probability of the fraction. Infinities and NaN are kept.
    """
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << _BF16_DROPPED_BITS, bits.shape, dtype=torch.int32, generator=generator)
    rounded = ((bits + noise) & ~((1 << _BF16_DROPPED_BITS) - 1)).view(torch.float32)
    return torch.where(torch.isfinite(values), rounded, values).to(torch.bfloat16)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
