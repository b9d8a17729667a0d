from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.advantages import advantages

groups = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=5)


def flatten(rewards):
    ids = [str(q) for q, group in enumerate(rewards) for _ in group]
    return ids, np.array([reward for group in rewards for reward in group])


def test_rloo_and_dr_grpo_by_hand():
    ids, rewards = ["a", "b", "a", "a", "b"], np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    assert advantages(ids, rewards, "rloo").tolist() == [1.0, 1.0, -0.5, -0.5, -1.0]
    assert advantages(ids, rewards, "dr_grpo") == pytest.approx([2 / 3, 0.5, -1 / 3, -1 / 3, -0.5])


@given(groups, st.sampled_from(["rloo", "dr_grpo"]))
def test_groups_sum_to_zero_whatever_their_sizes(rewards, estimator):
    ids, flat = flatten(rewards)
    values = advantages(ids, flat, estimator)
    for q, group in enumerate(rewards):
        mine = values[[i == str(q) for i in ids]]
        assert mine.sum() == pytest.approx(0.0, abs=1e-12)
        if len(set(group)) == 1:
            assert np.all(mine == 0.0)


@given(groups, st.randoms(use_true_random=False))
def test_groups_are_formed_by_id_and_not_by_position(rewards, random):
    ids, flat = flatten(rewards)
    values = advantages(ids, flat, "rloo")
    order = list(range(len(ids)))
    random.shuffle(order)
    assert np.array_equal(advantages([ids[i] for i in order], flat[order], "rloo"), values[order])


def test_rloo_is_unbiased_for_uneven_groups_and_a_flat_mean_is_another_objective():
    """One Bernoulli parameter a prompt, score (r - p): E[prompt_mean gradient] = mean of p (1 - p), enumerated."""
    p, n = np.array([0.1, 0.5]), [2, 4]
    expected, flat_expected = 0.0, 0.0
    for outcome in np.ndindex(*([2] * sum(n))):
        r = np.array(outcome, dtype=float)
        q = np.repeat([0, 1], n)
        probability = np.prod(np.where(r == 1, p[q], 1 - p[q]))
        terms = advantages([str(i) for i in q], r, "rloo") * (r - p[q])
        expected += probability * np.mean([terms[q == i].mean() for i in (0, 1)])
        flat_expected += probability * terms.mean()
    assert expected == pytest.approx(np.mean(p * (1 - p)))
    assert flat_expected == pytest.approx(np.average(p * (1 - p), weights=n))


def test_missing_rewards_are_an_error():
    with pytest.raises(ValueError, match=r"rollout 1 \(prompt 'b'\) is nan"):
        advantages(["a", "b"], np.array([1.0, np.nan]), "rloo")
    with pytest.raises(ValueError, match="2 prompt ids for 3 rewards"):
        advantages(["a", "b"], np.zeros(3), "rloo")
    with pytest.raises(ValueError, match="'ppo'"):
        advantages(["a"], np.zeros(1), "ppo")
