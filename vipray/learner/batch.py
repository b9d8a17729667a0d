"""From verified rollouts to mini-batches of weighted rollouts: the decisions of a step that need no model.

The loss of a mini-batch is a weighted sum over tokens; `vipray/learner/README.md` derives the weights. A token's is

    prompt_mean     w_q / (B n_q) × norm      mean over prompts of the mean over the group's rollouts
    sequence_mean   w_q / N × norm            mean over rollouts: prompt q weighs n_q / N
    token_mean      w_q / T                   mean over tokens: long and many rollouts weigh most

with B prompts, N rollouts and T tokens in the mini-batch, norm = 1 / tokens of the rollout (`sequence`), 1 / the
longest completion allowed (`constant`) or 1 (`none`). B counts every prompt of the allocation, N and T every rollout
with a score, also those without a signal: their term is zero, not absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from vipray.advantages import advantages
from vipray.errors import BatchContractError
from vipray.learner.packing import TrainingRollout
from vipray.records import ROLLOUT_SCHEMA, Allocation, Outcome, RolloutId

_Row = Mapping[str, Any]
Groups = tuple[tuple[TrainingRollout, ...], ...]


@dataclass(frozen=True)
class BatchOptions:
    """How rollouts are weighed.

    Attributes:
        estimator: of the advantages, a member of `vipray.advantages.ADVANTAGES`.
        aggregation: `prompt_mean`, `sequence_mean` or `token_mean`.
        length_norm: `sequence`, `constant` or `none`.
        max_completion_tokens: what `constant` divides by.
        max_positions: longest sequence that the model was made for.
        prompts_per_step: prompts of a mini-batch; None takes the batch in one optimiser step.
        passes: how often a batch is gone through.
        mask_truncated: leave completions that hit the token limit out of the loss; their rewards stay in the baseline.
        keep_silent: also compute groups without a signal, for a loss with other terms.
        seed: of the order of the prompts.
    """

    estimator: str = "rloo"
    aggregation: str = "prompt_mean"
    length_norm: str = "sequence"
    max_completion_tokens: int = 1
    max_positions: int | None = None
    prompts_per_step: int | None = None
    passes: int = 1
    mask_truncated: bool = False
    keep_silent: bool = False
    seed: int = 0


@dataclass(frozen=True)
class TrainingBatch:
    """A step's batch.

    Attributes:
        minibatches: the groups of each optimiser step, in order, each with the rollouts of one prompt that carry
            weight; one without a signal has no groups.
        silent_groups: groups with equal rewards or a single rollout, for comparing engine and learner.
        metrics: what was left out, and why, by name.
    """

    minibatches: tuple[Groups, ...]
    silent_groups: Groups
    metrics: Mapping[str, float]


def training_batch(rollouts: Sequence[pa.RecordBatch], allocation: Allocation, options: BatchOptions) -> TrainingBatch:
    """Check the batch against its allocation, attach advantages and weights, and split it into mini-batches.

    Rollouts whose outcome is no evidence, and those whose log-probabilities are not finite, are left out of their
    group, which is then smaller.

    Raises:
        BatchContractError: the batch is not exactly the allocation's, or a rollout does not fit together.
        ValueError: a reward is missing.
    """
    rows = _checked_rows(rollouts, allocation, options.max_positions)
    scored = [row for row in rows if row["outcome"] is not None and Outcome(row["outcome"]).is_evidence]
    usable = [row for row in scored if np.isfinite(row["logprobs"]).all()]
    rewards = np.array([row["reward"] for row in usable], dtype=np.float64)
    values = advantages([row["prompt_id"] for row in usable], rewards, options.estimator)
    groups: dict[str, list[tuple[_Row, float]]] = {}
    for row, advantage in zip(usable, values.tolist(), strict=True):
        groups.setdefault(row["prompt_id"], []).append((row, advantage))
    loud = {prompt_id for prompt_id, group in groups.items() if any(advantage for _, advantage in group)}
    trained = set(groups) if options.keep_silent else loud
    minibatches = tuple(
        _weighted(prompts, groups, trained, allocation, options) for prompts in _minibatches(allocation, options)
    )
    silent = [prompt_id for prompt_id in groups if prompt_id not in loud]
    metrics = {
        "groups/without_signal": len(silent),
        "groups/of_one": sum(len(group) == 1 for group in groups.values()),
        "rollouts/unscored": len(rows) - len(scored),
        "rollouts/nonfinite": len(scored) - len(usable),
        "rollouts/truncated": sum(_is_truncated(row) for row in rows),
        "rollouts/empty": sum(len(row["completion_token_ids"]) <= 1 and not _is_truncated(row) for row in rows),
    }
    return TrainingBatch(
        minibatches=minibatches,
        silent_groups=_weighted(silent, groups, set(silent), allocation, options),
        metrics={name: float(value) for name, value in metrics.items()},
    )


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


def _checked_rows(rollouts: Sequence[pa.RecordBatch], allocation: Allocation, max_positions: int | None) -> list[_Row]:
    table = pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA)
    check_batch(table, allocation)
    table = table.sort_by([("prompt_id", "ascending"), ("k", "ascending")])  # whatever order they arrived in
    rows: list[_Row] = table.drop_columns(["text", "extracted", "reason", "policy_versions"]).to_pylist()
    for row in rows:
        name = f"rollout {row['k']} of prompt {row['prompt_id']!r}, step {row['step']}"
        num_tokens, num_logprobs = len(row["completion_token_ids"]), len(row["logprobs"])
        if num_tokens != num_logprobs:
            raise BatchContractError(f"{name} has {num_tokens} tokens and {num_logprobs} log-probabilities")
        length = len(row["prompt_token_ids"]) + num_tokens
        if max_positions is not None and length > max_positions:
            raise BatchContractError(
                f"{name} has {length} tokens, more than the model's {max_positions} positions: lower "
                "data.max_prompt_tokens or sampling.max_tokens"
            )
    return rows


def _minibatches(allocation: Allocation, options: BatchOptions) -> list[list[str]]:
    """The prompts of each optimiser step: all at once, or a new order in every pass, cut into even parts."""
    prompts = list(allocation.prompt_ids)
    size = min(options.prompts_per_step or len(prompts), len(prompts))
    parts = -(-len(prompts) // size)
    steps: list[list[str]] = []
    for number in range(options.passes):
        order = np.random.default_rng([options.seed, allocation.step, number]).permutation(len(prompts))
        order = np.sort(order) if parts == 1 else order
        steps += [[prompts[q] for q in part] for part in np.array_split(order, parts)]
    return steps


def _weighted(
    prompts: Sequence[str],
    groups: Mapping[str, Sequence[tuple[_Row, float]]],
    trained: set[str],
    allocation: Allocation,
    options: BatchOptions,
) -> Groups:
    """The rollouts of a mini-batch's prompts with the weight of each of their tokens."""
    size = Counter({prompt_id: len(groups.get(prompt_id, ())) for prompt_id in prompts})
    num_tokens = sum(len(row["completion_token_ids"]) for q in prompts for row, _ in groups.get(q, ()))
    weight_of = allocation.weight_of()

    def token_weight(prompt_id: str, length: int) -> float:
        weight = weight_of[prompt_id]
        if options.aggregation == "token_mean":
            return weight / num_tokens
        norm = {"sequence": length, "constant": options.max_completion_tokens, "none": 1}[options.length_norm]
        terms = len(prompts) * size[prompt_id] if options.aggregation == "prompt_mean" else size.total()
        return weight / (terms * norm)

    def rollout(row: _Row, advantage: float) -> TrainingRollout:
        return TrainingRollout(
            prompt_token_ids=tuple(row["prompt_token_ids"]),
            completion_token_ids=tuple(row["completion_token_ids"]),
            logprobs=tuple(row["logprobs"]),
            advantage=advantage,
            token_weight=token_weight(row["prompt_id"], len(row["completion_token_ids"])),
            is_current=row["policy_version_first"] == allocation.step,
        )

    chosen = (
        [(row, advantage) for row, advantage in groups[q] if _carries_weight(row, options)]
        for q in prompts
        if q in trained
    )
    return tuple(tuple(rollout(row, advantage) for row, advantage in group) for group in chosen if group)


def _carries_weight(row: _Row, options: BatchOptions) -> bool:
    return bool(row["completion_token_ids"]) and not (options.mask_truncated and _is_truncated(row))


def _is_truncated(row: _Row) -> bool:
    return bool(row["finish_reason"] == "length")
