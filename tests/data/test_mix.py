from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.data.mix import share_sizes


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(0, 5000))
def test_shares_are_whole_sum_to_the_total_and_miss_the_exact_share_by_less_than_one(weights, total):
    sizes = share_sizes(weights, total)
    assert sum(sizes.values()) == total and list(sizes) == list(weights)
    scale = total / sum(weights.values())
    assert all(abs(sizes[label] - weight * scale) < 1.0 + 1e-9 for label, weight in weights.items())


def test_without_weights_there_is_nothing_to_share():
    assert share_sizes({}, 10) == {}
