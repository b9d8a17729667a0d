from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.learner.support import make_allocation
from vipray.errors import BatchContractError
from vipray.learner.batch import BatchOptions, training_batch
from vipray.records import ROLLOUT_SCHEMA

OPTIONS = BatchOptions()


def allocation(n=(2, 3, 2), weight=(1.0, 0.5, 1.0)):
    return make_allocation(1, n, weight[: len(n)])


def row(prompt_id, k, reward, outcome=None, **others):
    values = {
        "step": 1,
        "prompt_id": prompt_id,
        "k": k,
        "generator_id": "g0",
        "policy_version_first": 1,
        "policy_version_last": 1,
        "prompt_token_ids": [1, ord(prompt_id)],
        "completion_token_ids": [3, 4 + k],
        "logprobs": [-0.5, -0.25],
        "finish_reason": "stop",
        "text": "",
        "latency_s": 0.1,
        "reward": reward,
        "outcome": outcome or ("correct" if reward else "wrong"),
        "extracted": "",
    }
    return pa.RecordBatch.from_pylist([values | others], schema=ROLLOUT_SCHEMA)


def rows():
    return [
        row("a", 0, 1.0), row("a", 1, 0.0), row("b", 0, 1.0), row("b", 1, 0.0), row("b", 2, 0.0),
        row("c", 0, 0.0), row("c", 1, 0.0),
    ]  # fmt: skip


def weights(batch, step=0):
    return [group[0].token_weight for group in batch.minibatches[step]]


def test_a_token_weighs_prompt_weight_over_prompts_group_size_and_length():
    batch = training_batch(rows(), allocation(), OPTIONS)
    (groups,) = batch.minibatches
    assert [[r.advantage for r in group] for group in groups] == [[1.0, -1.0], [1.0, -0.5, -0.5]]
    assert weights(batch) == pytest.approx([1 / (3 * 2 * 2), 0.5 / (3 * 3 * 2)])
    assert [len(group) for group in batch.silent_groups] == [2]  # c still counts as one of three prompts
    assert groups[0][1].completion_token_ids == (3, 5) and groups[0][1].logprobs == (-0.5, -0.25)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"length_norm": "none"}, [1 / (3 * 2), 0.5 / (3 * 3)]),
        ({"length_norm": "constant", "max_completion_tokens": 10}, [1 / (3 * 2 * 10), 0.5 / (3 * 3 * 10)]),
        ({"aggregation": "sequence_mean"}, [1 / (7 * 2), 0.5 / (7 * 2)]),
        ({"aggregation": "sequence_mean", "length_norm": "none"}, [1 / 7, 0.5 / 7]),
        ({"aggregation": "token_mean"}, [1 / 14, 0.5 / 14]),
    ],
    ids=str,
)
def test_other_aggregations_have_other_denominators(settings, expected):
    batch = training_batch(rows(), allocation(), replace(OPTIONS, **settings))
    assert weights(batch) == pytest.approx(expected)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=8), st.integers(0, 2**16))
def test_with_prompt_mean_every_prompt_has_the_same_share_whatever_its_n(n, seed):
    rng = np.random.default_rng(seed)
    shares = make_allocation(1, tuple(n))
    batch = [
        row(q, k, float(k == 0), completion_token_ids=[3] * length, logprobs=[-1.0] * length)
        for q, size in zip(shares.prompt_ids, n, strict=True)
        for k, length in enumerate(rng.integers(1, 9, size).tolist())
    ]
    (groups,) = training_batch(batch, shares, OPTIONS).minibatches
    for group in groups:
        assert sum(r.token_weight * len(r.logprobs) for r in group) == pytest.approx(1 / len(n))


def test_the_order_of_arrival_changes_nothing():
    assert training_batch(rows()[::-1], allocation(), OPTIONS) == training_batch(rows(), allocation(), OPTIONS)


@pytest.mark.parametrize(
    "lost",
    [
        row("b", 2, 0.0, "timeout"),
        row("b", 2, 0.0, logprobs=[float("-inf"), -0.2]),
        row("b", 2, 0.0, logprobs=[-0.2, float("nan")]),
    ],
    ids=["unscored", "-inf", "nan"],
)
def test_rollouts_that_cannot_be_used_leave_a_smaller_group_behind(lost):
    batch = training_batch([*rows()[:4], lost, *rows()[5:]], allocation(), OPTIONS)
    assert batch.metrics["rollouts/unscored"] + batch.metrics["rollouts/nonfinite"] == 1
    assert [r.advantage for r in batch.minibatches[0][1]] == [1.0, -1.0]
    assert weights(batch)[1] == pytest.approx(0.5 / (3 * 2 * 2))


def test_a_group_of_one_is_counted_and_has_no_signal():
    batch = training_batch([row("a", 0, 1.0, "error"), *rows()[1:]], allocation(), OPTIONS)
    assert batch.metrics["groups/of_one"] == 1 and batch.metrics["groups/without_signal"] == 2
    assert len(batch.minibatches[0]) == 1


def test_truncated_completions_can_be_left_out_of_the_loss_but_stay_in_the_baseline():
    cut = [row("b", 1, 0.0, finish_reason="length"), row("b", 2, 0.0, finish_reason="length")]
    batch = training_batch([*rows()[:3], *cut, *rows()[5:]], allocation(), replace(OPTIONS, mask_truncated=True))
    assert batch.metrics["rollouts/truncated"] == 2
    assert [r.advantage for r in batch.minibatches[0][1]] == [1.0]
    assert weights(batch)[1] == pytest.approx(0.5 / (3 * 3 * 2))  # their term is zero, not absent


def test_an_empty_completion_divides_nothing_by_zero():
    empty = row("b", 2, 0.0, completion_token_ids=[], logprobs=[])
    batch = training_batch([*rows()[:4], empty, *rows()[5:]], allocation(), OPTIONS)
    assert [r.advantage for r in batch.minibatches[0][1]] == [1.0, -0.5]
    assert batch.metrics["rollouts/empty"] == 1


def test_mini_batches_cut_the_prompts_and_each_has_its_own_denominator():
    options = replace(OPTIONS, prompts_per_step=2, passes=3, seed=4)
    loud = [row(q, k, float(k == 0)) for q in "abc" for k in range(2)]
    batch = training_batch(loud, make_allocation(1, (2, 2, 2)), options)
    prompts = [[group[0].prompt_token_ids[1] for group in groups] for groups in batch.minibatches]
    assert [len(part) for part in prompts] == [2, 1] * 3
    for number in range(3):
        assert sorted(prompts[2 * number] + prompts[2 * number + 1]) == [97, 98, 99]
    assert [weights(batch, step)[0] for step in (0, 1)] == pytest.approx([1 / (2 * 2 * 2), 1 / (1 * 2 * 2)])
    assert training_batch(loud, make_allocation(1, (2, 2, 2)), options) == batch


def test_groups_without_a_signal_stay_where_the_loss_has_other_terms():
    batch = training_batch(rows(), allocation(), replace(OPTIONS, keep_silent=True))
    assert [len(group) for group in batch.minibatches[0]] == [2, 3, 2]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (rows()[1:], "1 are missing, 0 were not asked for, 0 came twice"),
        ([*rows(), rows()[0]], "0 are missing, 0 were not asked for, 1 came twice"),
        ([*rows()[1:], row("a", 7, 1.0)], "1 are missing, 1 were not asked for"),
        ([*rows()[1:], row("a", 0, 1.0, step=2)], "1 are missing, 1 were not asked for"),
        (
            [row("a", 0, 1.0, logprobs=[-0.5]), *rows()[1:]],
            "rollout 0 of prompt 'a', step 1 has 2 tokens and 1 log-prob",
        ),
    ],
)
def test_a_batch_that_is_not_the_allocations_is_refused(batch, words):
    with pytest.raises(BatchContractError, match=words):
        training_batch(batch, allocation(), OPTIONS)


def test_a_completion_beyond_the_models_positions_is_refused():
    with pytest.raises(BatchContractError, match="has 4 tokens, more than the model's 3 positions"):
        training_batch(rows(), allocation(), replace(OPTIONS, max_positions=3))


def test_a_missing_reward_is_an_error_and_not_a_nan():
    with pytest.raises(ValueError, match="not verified"):
        training_batch([row("a", 0, None, "correct"), *rows()[1:]], allocation(), OPTIONS)
