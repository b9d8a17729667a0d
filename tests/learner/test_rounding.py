from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vipray.learner.rounding import round_stochastically

STEP = 2.0**-7  # of the bfloat16 grid at 1


def test_it_is_unbiased_where_rounding_to_nearest_swallows_the_update():
    values = torch.full((400_000,), 1.0 + 0.1 * STEP)
    rounded = round_stochastically(values, "w").float()
    assert set(rounded.unique().tolist()) == {1.0, 1.0 + STEP}
    assert float((rounded.mean() - 1.0) / STEP) == pytest.approx(0.1, abs=0.003)
    assert torch.all(values.to(torch.bfloat16) == 1.0)


def test_noise_of_neighbours_and_of_versions_is_independent():
    values = torch.full((1 << 20,), 1.0 + 0.5 * STEP)
    up = [(round_stochastically(values, 0, version).float() > 1.0).double() for version in range(3)]
    for other in (up[1], up[2], up[0].roll(1), up[0].roll(64)):
        assert abs(float(torch.corrcoef(torch.stack([up[0], other]))[0, 1])) < 0.005  # five standard deviations


def test_it_keeps_the_grid_signs_and_what_is_not_finite():
    values = torch.tensor([1.0, -3.5, 0.0, float("inf"), -float("inf"), float("nan")])
    rounded = round_stochastically(values).float()
    assert torch.equal(rounded[:5], values[:5]) and bool(torch.isnan(rounded[5]))
    below = round_stochastically(torch.full((1000,), -1.001)).float()
    assert float(below.min()) < -1.001 < float(below.max()) < 0


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**33))
def test_shards_get_what_the_whole_would_get(rows, columns, cut, start):
    values = torch.randn(rows, columns)
    cut = min(cut, rows)
    whole = round_stochastically(values, 3, "w", start=start)
    parts = [(values[:cut], start), (values[cut:], start + cut * columns)]
    rounded = torch.cat([round_stochastically(part, 3, "w", start=place) for part, place in parts])
    assert torch.equal(whole, rounded)


def test_it_is_repeatable_by_key():
    values = torch.randn(1000)
    first, again, other = (round_stochastically(values, key) for key in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
