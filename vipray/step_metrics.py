"""The figures of one step, from its spans and its verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vipray.allocation.policies import POLICIES
from vipray.arrays import IntArray
from vipray.dispatch.staleness import staleness_metrics
from vipray.records import Allocation, Span, Verdict


@dataclass(frozen=True)
class Planning:
    """How a step's allocation came about.

    Attributes:
        allocation: the allocation itself, with the allocator's span.
        predictor_spans: when the predictor observed the last step and predicted this one.
        wait_s: how long the controller stood still for the allocation, overhead of the calls included.
        predictor_metrics: figures about the predictor itself, by name.
    """

    allocation: Allocation
    predictor_spans: tuple[Span, ...]
    wait_s: float
    predictor_metrics: Mapping[str, float] = field(default_factory=dict)

    def metrics(self, covers: Sequence[Span]) -> dict[str, float]:
        """Hidden and exposed seconds of predictor and allocator, and the wait.

        Args:
            covers: training, publishing and generation of the steps before, behind which planning can hide.
        """
        predictor = _split("predictor", self.predictor_spans, covers)
        allocator = _split("allocator", (self.allocation.span,), covers)
        own = {f"predictor/{name}": value for name, value in self.predictor_metrics.items()}
        return {**own, **predictor, **allocator, "allocation/wait_s": self.wait_s}


def staleness(step: int, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Version that sampled the oldest token of a batch, and by how many versions its tokens lag behind the learner."""
    versions = [verdict.policy_version for verdict in verdicts]
    if not versions:  # every rollout was set aside
        return {"policy/version": math.nan}
    ages = staleness_metrics(step, versions)
    return {"policy/version": min(versions), **{f"policy/staleness/{name}": value for name, value in ages.items()}}


def _split(name: str, spans: Sequence[Span], covers: Sequence[Span]) -> dict[str, float]:
    total = sum(span.duration_s for span in spans)
    apart = _disjoint(covers)
    hidden = sum(span.overlap_s(cover) for span in spans for cover in apart)
    return {f"{name}/exposed_s": total - hidden, f"{name}/hidden_s": hidden}


def _disjoint(spans: Sequence[Span]) -> list[Span]:
    """The union of spans as spans that do not overlap."""
    apart: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if apart and span.start_s <= apart[-1].end_s:
            apart[-1] = Span(apart[-1].start_s, max(apart[-1].end_s, span.end_s))
        else:
            apart.append(span)
    return apart


def count_evidence(prompt_ids: Sequence[str], verdicts: Sequence[Verdict]) -> tuple[IntArray, IntArray]:
    """Successes [B] and trials [B] by prompt; outcomes that are no evidence are in neither."""
    trials = Counter(v.rollout_id.prompt_id for v in verdicts if v.outcome.is_evidence)
    successes = Counter(v.rollout_id.prompt_id for v in verdicts if v.outcome.is_evidence and v.reward >= 1.0)
    return (
        np.array([successes[prompt_id] for prompt_id in prompt_ids], dtype=np.int64),
        np.array([trials[prompt_id] for prompt_id in prompt_ids], dtype=np.int64),
    )


def reward_metrics(verdicts: Sequence[Verdict], task_of: Mapping[str, str]) -> dict[str, float]:
    """Mean reward of the batch and by task, and how much was generated."""
    by_task: dict[str, list[float]] = {}
    for verdict in verdicts:
        by_task.setdefault(task_of[verdict.rollout_id.prompt_id], []).append(verdict.reward)
    return {
        "reward/mean": float(np.mean([verdict.reward for verdict in verdicts])) if verdicts else math.nan,
        **{f"reward/mean/{task}": float(np.mean(rewards)) for task, rewards in sorted(by_task.items())},
        "rollouts/count": len(verdicts),
        "rollouts/tokens": sum(verdict.num_tokens for verdict in verdicts),
    }


def allocation_rows(
    allocation: Allocation, successes: IntArray, trials: IntArray, task_of: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row a prompt for the allocation log (`ALLOCATION_SCHEMA`)."""
    shadow = allocation.shadow
    return [
        {
            "step": allocation.step,
            "prompt_id": prompt_id,
            "task": task_of[prompt_id],
            "success_prob": float(allocation.success_prob[q]),
            "gradient_variance": float(allocation.gradient_variance[q]),
            "prompt_weight": float(allocation.prompt_weight[q]),
            "n": int(allocation.n[q]),
            "successes": int(successes[q]),
            "trials": int(trials[q]),
            **{f"n_{name}": int(shadow[name][q]) if name in shadow else None for name in POLICIES},
        }
        for q, prompt_id in enumerate(allocation.prompt_ids)
    ]
