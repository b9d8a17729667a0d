"""Evaluation of every prompt with equal n. The predictor does not see its outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.rollouts import RolloutBatch, RolloutMaker
from vipray.records import RolloutId
from vipray.step_metrics import count_evidence


async def evaluate(rollouts: RolloutMaker, step: int, n: int, expected_tokens: Mapping[str, float]) -> RolloutBatch:
    """Make `n` rollouts of every prompt of `expected_tokens` on the version of `step`."""
    prompt_ids = list(expected_tokens)
    try:
        rollouts.open(
            step, [RolloutId(step, prompt_id, k) for prompt_id in prompt_ids for k in range(n)], expected_tokens
        )
        return await rollouts.finished(step)
    finally:
        rollouts.close()


def evaluation_rows(step: int, batch: RolloutBatch, task_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a prompt, with `EVALUATION_SCHEMA`."""
    successes, trials = count_evidence(list(task_of), batch.verdicts)
    return [
        {"step": step, "prompt_id": prompt_id, "task": task, "successes": s, "trials": t}
        for (prompt_id, task), s, t in zip(task_of.items(), successes.tolist(), trials.tolist(), strict=True)
    ]
