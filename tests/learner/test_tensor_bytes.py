from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vipray.learner.shards import shard_bounds
from vipray.learner.tensor_bytes import fill_chunks, plan_manifest, tensors_in

shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=12)


def shards(tensors, rank, num_ranks):
    return [tensor[slice(*shard_bounds(len(tensor), num_ranks)[rank])] for tensor in tensors]


@given(shapes, st.integers(2, 200), st.sampled_from([torch.bfloat16, torch.float32]), st.integers(1, 4))
def test_tensors_come_back_bit_for_bit_from_any_number_of_ranks(shape_list, chunk_nbytes, dtype, num_ranks):
    tensors = [torch.randn(shape).to(dtype) for shape in shape_list]
    named = [(f"t{i}", shape) for i, shape in enumerate(shape_list)]
    manifest = plan_manifest(named, dtype, chunk_nbytes, num_ranks)
    ranks = [list(fill_chunks(manifest, rank, shards(tensors, rank, num_ranks))) for rank in range(num_ranks)]
    assert all(len(chunks) == manifest.num_groups for chunks in ranks)
    back: list[tuple[str, torch.Tensor]] = []
    for group, chunks in enumerate(zip(*ranks, strict=True)):
        numbers = manifest.chunks_of(group)
        assert tuple(len(chunk) for chunk in chunks) == tuple(manifest.chunk_nbytes[n] for n in numbers)
        size = sum(len(chunk) for chunk in chunks)
        assert size <= chunk_nbytes or len(manifest.entries_of(group)) == 1
        back += tensors_in(manifest.entries_of(group), dict(zip(numbers, chunks, strict=True)))
    assert [name for name, _ in back] == [name for name, _ in named]
    assert all(torch.equal(got, sent) for (_, got), sent in zip(back, tensors, strict=True))


def test_read_only_chunks_are_fine():
    manifest = plan_manifest([("w", (3,))], torch.float32, 64)
    (chunk,) = fill_chunks(manifest, 0, [torch.arange(3.0)])
    chunk.flags.writeable = False
    assert dict(tensors_in(manifest.entries, {0: chunk}))["w"].tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_that_is_not_the_manifests_is_refused():
    manifest = plan_manifest([("w", (3,))], torch.float32, 64)
    with pytest.raises(ValueError, match=r"rank 0 has torch\.float32 \(4,\) of w"):
        list(fill_chunks(manifest, 0, [torch.zeros(4)]))
    with pytest.raises(ValueError, match="more tensors"):
        list(fill_chunks(manifest, 0, [torch.zeros(3), torch.zeros(3)]))


def test_one_chunk_is_in_memory_at_a_time():
    manifest = plan_manifest([(f"t{i}", (4,)) for i in range(5)], torch.float32, 16)
    made = []

    def rows():
        for index in range(5):
            made.append(index)
            yield torch.full((4,), float(index))

    chunks = fill_chunks(manifest, 0, rows())
    first = next(chunks)
    assert made == [0] and np.frombuffer(first, np.float32).tolist() == [0.0] * 4
    assert manifest.num_groups == 5 and replace(manifest, version=3).version == 3
