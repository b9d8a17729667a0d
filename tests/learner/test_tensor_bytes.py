from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vipray.learner.tensor_bytes import fill_chunks, plan_manifest, round_stochastically, tensors_in

shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=12)


@given(shapes, st.integers(2, 200), st.sampled_from([torch.bfloat16, torch.float32]))
def test_tensors_come_back_bit_for_bit_and_chunks_keep_their_size(shape_list, chunk_nbytes, dtype):
    tensors = [torch.randn(shape).to(dtype) for shape in shape_list]
    manifest = plan_manifest([(f"t{i}", shape) for i, shape in enumerate(shape_list)], dtype, chunk_nbytes)
    chunks = fill_chunks(manifest, tensors)
    assert tuple(len(chunk) for chunk in chunks) == manifest.chunk_nbytes
    for index, size in enumerate(manifest.chunk_nbytes):
        assert size <= chunk_nbytes or len(manifest.entries_of(index)) == 1
    back = [item for index, chunk in enumerate(chunks) for item in tensors_in(chunk, manifest.entries_of(index))]
    assert [name for name, _ in back] == [f"t{i}" for i in range(len(tensors))]
    assert all(torch.equal(got, sent) for (_, got), sent in zip(back, tensors, strict=True))


def test_read_only_chunks_are_fine():
    manifest = plan_manifest([("w", (3,))], torch.float32, 64)
    (chunk,) = fill_chunks(manifest, [torch.arange(3.0)])
    chunk.flags.writeable = False
    assert dict(tensors_in(chunk, manifest.entries))["w"].tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_that_is_not_the_manifests_is_refused():
    manifest = plan_manifest([("w", (3,))], torch.float32, 64)
    with pytest.raises(ValueError, match=r"w is torch\.float32"):
        fill_chunks(manifest, [torch.zeros(4)])
    with pytest.raises(ValueError):
        fill_chunks(replace(manifest, entries=()), [torch.zeros(3)])


def test_stochastic_rounding_is_unbiased_where_rounding_to_nearest_swallows_the_update():
    step = 2.0**-7  # of the bfloat16 grid at 1
    values = torch.full((400_000,), 1.0 + 0.1 * step)
    rounded = round_stochastically(values, torch.Generator().manual_seed(0)).float()
    assert set(rounded.unique().tolist()) == {1.0, 1.0 + step}
    assert float((rounded.mean() - 1.0) / step) == pytest.approx(0.1, abs=0.003)
    assert torch.all(values.to(torch.bfloat16) == 1.0)


def test_stochastic_rounding_keeps_the_grid_signs_and_what_is_not_finite():
    values = torch.tensor([1.0, -3.5, 0.0, float("inf"), -float("inf"), float("nan")])
    rounded = round_stochastically(values, torch.Generator().manual_seed(0)).float()
    assert torch.equal(rounded[:5], values[:5]) and bool(torch.isnan(rounded[5]))
    below = torch.full((1000,), -1.001)
    rounded = round_stochastically(below, torch.Generator().manual_seed(0)).float()
    assert float(rounded.min()) < -1.001 < float(rounded.max()) < 0


def test_rounding_is_repeatable_by_seed():
    values = torch.randn(1000)
    first, again, other = (round_stochastically(values, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
