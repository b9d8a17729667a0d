from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from vipray.errors import BatchContractError
from vipray.learner.batch import training_batch
from vipray.records import ROLLOUT_SCHEMA, Allocation, Span


def allocation(n=(2, 3, 2), weight=(1.0, 0.5, 1.0)):
    size = len(n)
    return Allocation(
        step=1,
        prompt_ids=tuple("abc"[:size]),
        n=np.array(n),
        prompt_weight=np.array(weight[:size]),
        success_prob=np.full(size, 0.5),
        gradient_variance=np.ones(size),
        span=Span(0.0, 0.0),
    )


def row(prompt_id, k, reward, outcome=None, step=1):
    values = {
        "step": step,
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
    return pa.RecordBatch.from_pylist([values], schema=ROLLOUT_SCHEMA)


def rows():
    return [
        row("a", 0, 1.0), row("a", 1, 0.0), row("b", 0, 1.0), row("b", 1, 0.0), row("b", 2, 0.0),
        row("c", 0, 0.0), row("c", 1, 0.0),
    ]  # fmt: skip


def test_weights_are_prompt_weight_over_prompts_and_group_size():
    batch = training_batch(rows(), allocation(), "rloo")
    assert [[r.advantage for r in group] for group in batch.groups] == [[1.0, -1.0], [1.0, -0.5, -0.5]]
    assert [group[0].weight for group in batch.groups] == pytest.approx([1 / (3 * 2), 0.5 / (3 * 3)])
    assert [len(group) for group in batch.silent_groups] == [2]  # c still counts as one of three prompts
    assert batch.groups[0][1].completion_token_ids == (3, 5) and batch.groups[0][1].logprobs == (-0.5, -0.25)


def test_the_order_of_arrival_changes_nothing():
    assert training_batch(rows()[::-1], allocation(), "rloo") == training_batch(rows(), allocation(), "rloo")


def test_rollouts_without_a_score_leave_a_smaller_group_behind():
    batch = training_batch([*rows()[:4], row("b", 2, 0.0, "timeout"), *rows()[5:]], allocation(), "rloo")
    assert batch.num_unscored == 1
    assert [r.advantage for r in batch.groups[1]] == [1.0, -1.0]
    assert batch.groups[1][0].weight == pytest.approx(0.5 / (3 * 2))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (rows()[1:], "1 are missing, 0 were not asked for, 0 came twice"),
        ([*rows(), rows()[0]], "0 are missing, 0 were not asked for, 1 came twice"),
        ([*rows()[1:], row("a", 7, 1.0)], "1 are missing, 1 were not asked for"),
        ([*rows()[1:], row("a", 0, 1.0, step=2)], "1 are missing, 1 were not asked for"),
    ],
)
def test_a_batch_that_is_not_the_allocations_is_refused(batch, words):
    with pytest.raises(BatchContractError, match=words):
        training_batch(batch, allocation(), "rloo")
