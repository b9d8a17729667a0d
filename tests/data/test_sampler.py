from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.data.sampler import PromptSampler
from vipray.errors import ConfigError

SIZES = st.integers(1, 12)


def ids(count, start=0):
    return [str(q) for q in range(start, start + count)]


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(0, 3))
def test_batches_hold_distinct_prompts_and_epochs_visit_all_equally(num_prompts, batch_size, seed):
    if batch_size > num_prompts:
        with pytest.raises(ValueError, match=f"a batch of {batch_size} distinct prompts"):
            PromptSampler(ids(num_prompts), batch_size, seed)
        return
    sampler, visits = PromptSampler(ids(num_prompts), batch_size, seed), Counter[str]()
    for _ in range(3 * num_prompts):
        batch = sampler.next_batch()
        assert len(set(batch)) == len(batch) == batch_size
        visits.update(batch)
        counts = [visits[prompt_id] for prompt_id in ids(num_prompts)]
        assert max(counts) - min(counts) <= 2
    assert set(visits.values()) == {3 * batch_size}


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5))
def test_where_batches_fill_epochs_each_epoch_visits_every_prompt_once(batch_size, batches):
    sampler = PromptSampler(ids(batch_size * batches), batch_size, seed=1)
    epochs = [[p for _ in range(batches) for p in sampler.next_batch()] for _ in range(3)]
    assert all(sorted(epoch) == sorted(ids(batch_size * batches)) for epoch in epochs)
    if batch_size * batches > 8:
        assert all(a != b for a, b in pairwise(epochs))


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(0, 30))
def test_a_restored_sampler_goes_on_as_if_never_stopped(num_prompts, batch_size, num_steps):
    batch_size = min(batch_size, num_prompts)  # steps fall inside, on and over the ends of epochs
    sampler = PromptSampler(ids(num_prompts), batch_size, seed=5)
    for _ in range(num_steps):
        sampler.next_batch()
    state = json.loads(json.dumps(sampler.state_dict()))
    restored = PromptSampler(ids(num_prompts), batch_size, seed=0)
    restored.load_state_dict(state)
    assert restored.metrics() == sampler.metrics()
    assert [restored.next_batch() for _ in range(9)] == [sampler.next_batch() for _ in range(9)]


@settings(deadline=None)
@given(SIZES, st.data())
def test_with_another_batch_size_the_epoch_goes_on_where_it_was(num_prompts, data):
    before, after = (data.draw(st.integers(1, num_prompts)) for _ in range(2))
    sampler, visits = PromptSampler(ids(num_prompts), before, seed=2), Counter[str]()
    for _ in range(data.draw(st.integers(0, 20))):
        visits.update(sampler.next_batch())
    restored = PromptSampler(ids(num_prompts), after, seed=9)
    restored.load_state_dict(sampler.state_dict())
    for _ in range(2 * num_prompts):
        batch = restored.next_batch()
        assert len(set(batch)) == after
        visits.update(batch)
        counts = [visits[prompt_id] for prompt_id in ids(num_prompts)]
        assert max(counts) - min(counts) <= 2


def test_changed_prompts_are_refused_with_the_remedy():
    state = PromptSampler(ids(8), 3, seed=0, fingerprint="abc").state_dict()
    for changed in (PromptSampler(ids(8), 3, seed=0, fingerprint="abd"), PromptSampler(ids(8), 3, seed=0)):
        with pytest.raises(ConfigError, match=r"prompt set has changed .*abc.*accept_changed_prompts=True"):
            changed.load_state_dict(state)
        assert changed.state_dict() == changed.state_dict() != state  # nothing of the state was taken
    with pytest.raises(ConfigError, match="prompt set has changed"):
        PromptSampler(ids(9), 3, seed=0).load_state_dict(PromptSampler(ids(8), 3, seed=0).state_dict())


@settings(deadline=None)
@given(st.integers(3, 10), st.integers(0, 6), st.integers(0, 10), st.integers(0, 12))
def test_on_request_a_run_goes_on_with_changed_prompts(num_old, num_removed, num_added, num_steps):
    old = ids(num_old)
    new = ids(num_old - min(num_removed, num_old - 1), min(num_removed, num_old - 1)) + ids(num_added, 100)
    sampler = PromptSampler(old, min(3, num_old), seed=4)
    for _ in range(num_steps):
        sampler.next_batch()
    left = [p for p in sampler.state_dict()["queue"] if p in new]
    batch_size = min(3, len(new))
    resumed = PromptSampler(new, batch_size, seed=0)
    resumed.load_state_dict(sampler.state_dict(), accept_changed_prompts=True)
    assert resumed.state_dict()["queue"] == left
    batches = [resumed.next_batch() for _ in range(4 * len(new))]
    assert all(len(set(batch)) == batch_size and set(batch) <= set(new) for batch in batches)
    drawn = [p for batch in batches for p in batch]
    assert set(drawn) == set(new)
    if len(set(left)) == len(left) >= batch_size:
        assert list(batches[0]) == left[:batch_size]  # what was left of the epoch comes first


def test_an_id_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="distinct"):
        PromptSampler(["a", "b", "a"], 1, 0)


def test_seeds_shuffle_differently():
    assert PromptSampler(ids(50), 50, 0).next_batch() != PromptSampler(ids(50), 50, 1).next_batch()
