from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.data.sampler import PromptSampler


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3))
def test_batches_hold_distinct_prompts_and_epochs_visit_all_equally(num_prompts, batch_size, seed):
    ids = [str(q) for q in range(num_prompts)]
    if batch_size > num_prompts:
        with pytest.raises(ValueError, match=f"a batch of {batch_size} distinct prompts"):
            PromptSampler(ids, batch_size, seed)
        return
    sampler, visits = PromptSampler(ids, batch_size, seed), Counter[str]()
    for _ in range(3 * num_prompts):
        batch = sampler.next_batch()
        assert len(set(batch)) == len(batch) == batch_size
        visits.update(batch)
        counts = [visits[prompt_id] for prompt_id in ids]
        assert max(counts) - min(counts) <= 2
    assert set(visits.values()) == {3 * batch_size}


def test_a_restored_sampler_goes_on_as_if_never_stopped():
    ids = [str(q) for q in range(7)]
    sampler = PromptSampler(ids, 3, seed=5)
    for _ in range(4):
        sampler.next_batch()
    restored = PromptSampler(ids, 3, seed=0)
    restored.load_state_dict(sampler.state_dict())
    assert [restored.next_batch() for _ in range(9)] == [sampler.next_batch() for _ in range(9)]


def test_seeds_shuffle_differently():
    ids = [str(q) for q in range(50)]
    assert PromptSampler(ids, 50, 0).next_batch() != PromptSampler(ids, 50, 1).next_batch()
