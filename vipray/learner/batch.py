"""From verified rollouts to the rollouts that the loss sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from vipray.advantages import advantages
from vipray.errors import BatchContractError
from vipray.learner.packing import TrainingRollout
from vipray.records import ROLLOUT_SCHEMA, Allocation, Outcome, RolloutId


@dataclass(frozen=True)
class TrainingBatch:
    """The groups of a step, each the rollouts of one prompt; groups without a signal are kept apart."""

    groups: tuple[tuple[TrainingRollout, ...], ...]
    silent_groups: tuple[tuple[TrainingRollout, ...], ...]  # rewards all equal: no gradient
    num_unscored: int  # rollouts whose outcome is no evidence; they are left out of their group


def check_batch(table: pa.Table, allocation: Allocation) -> None:
    """Raise `BatchContractError` unless the batch holds exactly the rollouts of the allocation, each once."""
    columns = [table.column(name).to_pylist() for name in RolloutId._fields]
    got = [RolloutId(*row) for row in zip(*columns, strict=True)]
    expected = set(allocation.rollout_ids())
    if len(got) != len(set(got)) or set(got) != expected:
        missing, surplus = len(expected - set(got)), len(set(got) - expected)
        raise BatchContractError(
            f"the batch of step {allocation.step} must hold {len(expected)} rollouts, each once: {missing} are "
            f"missing, {surplus} were not asked for, {len(got) - len(set(got))} came twice"
        )


def training_batch(rollouts: Sequence[pa.RecordBatch], allocation: Allocation, estimator: str) -> TrainingBatch:
    """Check the batch against its allocation and attach advantages and weights.

    The weight of a rollout is its prompt's weight / (B n), with n the rollouts of the group that have a score. B
    counts every prompt of the allocation, also those without a signal: their term is zero, not absent.
    """
    table = pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA)
    check_batch(table, allocation)
    table = table.sort_by([("prompt_id", "ascending"), ("k", "ascending")])  # whatever order they arrived in
    rows = table.to_pylist()
    scored = [row for row in rows if row["outcome"] is not None and Outcome(row["outcome"]).is_evidence]
    prompt_ids = [row["prompt_id"] for row in scored]
    values = advantages(prompt_ids, np.array([row["reward"] for row in scored], dtype=np.float64), estimator)
    weight_of = allocation.weight_of()
    size = {prompt_id: prompt_ids.count(prompt_id) for prompt_id in allocation.prompt_ids}
    groups: dict[str, list[TrainingRollout]] = {}
    for row, advantage in zip(scored, values.tolist(), strict=True):
        prompt_id = row["prompt_id"]
        rollout = TrainingRollout(
            prompt_token_ids=tuple(row["prompt_token_ids"]),
            completion_token_ids=tuple(row["completion_token_ids"]),
            logprobs=tuple(row["logprobs"]),
            advantage=advantage,
            weight=weight_of[prompt_id] / (len(allocation.prompt_ids) * size[prompt_id]),
        )
        groups.setdefault(prompt_id, []).append(rollout)
    loud = {prompt_id for prompt_id, group in groups.items() if any(r.advantage for r in group)}
    return TrainingBatch(
        groups=tuple(tuple(group) for prompt_id, group in groups.items() if prompt_id in loud),
        silent_groups=tuple(tuple(group) for prompt_id, group in groups.items() if prompt_id not in loud),
        num_unscored=len(rows) - len(scored),
    )
