from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.dispatch.deadlines import WorkDeadlines


def test_it_follows_the_slowest_pace_between_its_bounds():
    deadline = WorkDeadlines(max_s=100.0, min_s=10.0, factor=2.0)
    assert deadline.silence_s(1) == 100.0
    deadline.observe(0.001, 1000)
    assert deadline.silence_s(1) == 10.0
    deadline.observe(5.0, 100)  # 50 ms a token
    assert deadline.silence_s(200) == 20.0
    assert deadline.silence_s(10_000) == 100.0


def test_what_was_slowest_fades():
    deadline = WorkDeadlines(max_s=1e9, min_s=1e-9, factor=1.0)
    deadline.observe(100.0, 100)
    for _ in range(1024):
        deadline.observe(1.0, 100)
    assert deadline.silence_s(100) == pytest.approx(50.0)
    for _ in range(100 * 1024):
        deadline.observe(1.0, 100)
    assert deadline.silence_s(100) == pytest.approx(1.0)


def test_the_slowest_weight_load_is_added_within_the_upper_bound():
    deadline = WorkDeadlines(max_s=30.0, min_s=10.0)
    deadline.observe_pause(8.0)
    assert deadline.silence_s(1) == 30.0
    deadline.observe(0.0, 0)
    assert deadline.silence_s(1) == 18.0
    deadline.observe_pause(1.0)
    assert 17.0 < deadline.silence_s(1) < 18.0
    deadline.observe_pause(60.0)
    assert deadline.silence_s(1) == 30.0
    assert deadline.metrics() == {"seconds_per_token": 0.0, "pause_s": 60.0}


def test_an_upper_bound_below_the_lower_one_holds():
    deadline = WorkDeadlines(max_s=2.0)
    deadline.observe(0.1, 10)
    assert deadline.silence_s(10) == 2.0


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 10_000)), min_size=1, max_size=30),
    st.floats(0.1, 1e4),
    st.floats(0.1, 100),
)
def test_the_rollout_that_was_just_seen_would_never_be_taken_for_hung(observed, max_s, min_s):
    deadline = WorkDeadlines(max_s, min_s)
    for latency_s, num_tokens in observed:
        deadline.observe(latency_s, num_tokens)
        seconds = deadline.silence_s(max(num_tokens, 1))
        assert min(min_s, max_s) <= seconds <= max_s
        assert seconds >= min(latency_s, max_s) * (1 - 1e-9)
        assert deadline.lease_s(max(num_tokens, 1)) >= max(latency_s * (1 - 1e-9), min_s)
        assert deadline.silence_s(10 * max(num_tokens, 1)) >= seconds


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"max_s and min_s must be > 0, got 0\.0 and 15\.0"):
        WorkDeadlines(0.0)
    with pytest.raises(ValueError, match=r"factor must be >= 1, got 0\.5"):
        WorkDeadlines(1.0, factor=0.5)
    deadline = WorkDeadlines(1.0)
    with pytest.raises(ValueError, match=r"latency_s and num_tokens must be >= 0, got -1\.0 and 3"):
        deadline.observe(-1.0, 3)
    with pytest.raises(ValueError, match="a pause must be >= 0 s"):
        deadline.observe_pause(float("nan"))
