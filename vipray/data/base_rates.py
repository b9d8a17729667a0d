"""How often prompts were solved before: success by task, from a log of pass rates or an earlier run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vipray.data.prompts import PromptSet
from vipray.errors import ConfigError
from vipray.evaluation.pass_rate_log import read_log

_ALL = "all"


@dataclass(frozen=True)
class TaskRates:
    """Success of one task's prompts; `mean`, `never` and `always` are shares of the prompts that the log has.

    Attributes:
        task: label.
        num_prompts: of the prompt set.
        num_seen: of these, prompts that the log has.
        num_trials: rollouts of theirs, over all visits.
        mean: mean over prompts of the share of rollouts that succeeded.
        never: share of prompts that no rollout solved.
        always: share of prompts that every rollout solved.
    """

    task: str
    num_prompts: int
    num_seen: int
    num_trials: int
    mean: float
    never: float
    always: float


@dataclass(frozen=True)
class BaseRates:
    """Success by task, then of all prompts together."""

    name: str
    tasks: tuple[TaskRates, ...]

    def as_json(self) -> dict[str, Any]:
        """Values for a JSON file."""
        return {"log": self.name, "tasks": [dataclasses.asdict(task) for task in self.tasks]}


def read_base_rates(log: Path, prompts: PromptSet, *, trials: int, label: str = "") -> BaseRates:
    """Match a log with a prompt set.

    Args:
        log: folder of a run, its `allocations.parquet`, or a JSON log of pass rates by prompt.
        prompts: what would be trained on; the log may leave out the label that their ids begin with, if there is but
            one, or if it is given.
        trials: rollouts of a visit in a JSON log.
        label: the task or the file that the log is of; empty: any.

    Raises:
        ConfigError: the log cannot be read, or it has none of the prompts.
    """
    path = log / "allocations.parquet" if log.is_dir() else log
    counts = _counts(path, trials)
    labels = {prompt_id.partition("/")[0] for prompt_id in prompts.prompt_ids}
    if label and label not in labels:
        raise ConfigError(f"the log's label {label!r} is not one of {', '.join(sorted(labels))}")
    own = label or (labels.pop() if len(labels) == 1 else "")
    groups: dict[str, list[tuple[int, int]]] = {}
    for prompt_id, task in prompts.task_of.items():
        known = counts.get(prompt_id) or (counts.get(prompt_id.removeprefix(f"{own}/")) if own else None)
        groups.setdefault(task, []).append(known or (0, 0))
    if not any(total for group in groups.values() for _, total in group):
        theirs, ours = next(iter(counts)), prompts.prompt_ids[0]
        raise ConfigError(
            f"{path} knows none of the prompts: it calls them {theirs!r}, they are {ours!r}; where it leaves out a "
            "label, name that: --log LABEL=FILE"
        )
    everything = [pair for group in groups.values() for pair in group]
    tasks = [_task_rates(task, group) for task, group in sorted(groups.items())]
    return BaseRates(str(log), tuple(tasks) if len(tasks) == 1 else (*tasks, _task_rates(_ALL, everything)))


def _counts(path: Path, trials: int) -> dict[str, tuple[int, int]]:
    """Successes and trials of each prompt of a log, over all visits."""
    log = read_log(path, trials=trials)
    successes, totals = (np.zeros(len(log.prompt_ids), dtype=np.int64) for _ in range(2))
    for visits in log.steps:
        np.add.at(successes, visits.rows, visits.successes)
        np.add.at(totals, visits.rows, visits.trials)
    return dict(zip(log.prompt_ids, zip(successes.tolist(), totals.tolist(), strict=True), strict=True))


def _task_rates(task: str, counts: list[tuple[int, int]]) -> TaskRates:
    seen = [(successes, trials) for successes, trials in counts if trials]
    if not seen:
        return TaskRates(task, len(counts), 0, 0, 0.0, 0.0, 0.0)
    rates = np.array([successes / trials for successes, trials in seen])
    return TaskRates(
        task,
        num_prompts=len(counts),
        num_seen=len(seen),
        num_trials=sum(trials for _, trials in seen),
        mean=float(rates.mean()),
        never=float(np.mean(rates == 0.0)),
        always=float(np.mean(rates == 1.0)),
    )
