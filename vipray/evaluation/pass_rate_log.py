"""Logs of how often prompts were solved, visit by visit: what predictors are judged on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from vipray.arrays import FloatArray, IntArray
from vipray.data.chat import as_messages
from vipray.data.files import open_rows
from vipray.errors import ConfigError


@dataclass(frozen=True)
class Visits:
    """The prompts that were visited in one step.

    Attributes:
        rows: [B] distinct rows of the log's prompts.
        successes: [B] in [0, trials].
        trials: [B] >= 2, so that the variance of the outcome can be estimated.
    """

    rows: IntArray
    successes: IntArray
    trials: IntArray


@dataclass(frozen=True)
class PassRateLog:
    """Q prompts and the steps in which they were visited, in order; texts and task labels where they are known."""

    prompt_ids: tuple[str, ...]
    steps: tuple[Visits, ...]
    texts: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None


def read_log(path: Path, *, trials: int, prompts: Path | None = None) -> PassRateLog:
    """Read a log of pass rates.

    Args:
        path: JSON (prompt id to the list of its pass rates, one a visit), or a run's `allocations.parquet`.
        trials: rollouts a visit, where the log holds rates.
        prompts: Parquet with the prompts' texts: a run's `prompts.parquet` (columns prompt_id, text and, if there is
            one, task), or the schema of verl and DAPO, in which `extra_info.index` is the prompt's id.

    Raises:
        ConfigError: unreadable, a rate outside [0, 1], a rate that is no multiple of 1 / trials, prompts without text.
    """
    if path.suffix == ".json":
        log = _from_rates(path, _read_json(path), trials)
    elif path.suffix == ".parquet":
        log = _from_allocations(path)
    else:
        raise ConfigError(f"{path} is neither .json (pass rates by prompt) nor .parquet (allocations of a run)")
    return log if prompts is None else _with_texts(log, prompts)


def _read_json(path: Path) -> dict[str, list[float]]:
    try:
        rates = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(rates, dict) or not rates or not all(isinstance(visits, list) for visits in rates.values()):
        raise ConfigError(f"{path} must map prompt ids to lists of pass rates")
    return rates


def _from_rates(path: Path, rates: dict[str, list[float]], trials: int) -> PassRateLog:
    prompt_ids = tuple(rates)
    counts: list[IntArray] = []
    for prompt_id, visits in rates.items():
        successes = np.asarray(visits, dtype=np.float64) * trials
        whole = np.rint(successes)
        bad = ~((whole >= 0) & (whole <= trials) & (np.abs(successes - whole) < 1e-6))
        if bad.any():
            visit = int(np.argmax(bad))
            raise ConfigError(
                f"{path}: prompt {prompt_id}, visit {visit}: rate {visits[visit]} is not a multiple of 1/{trials} in "
                "[0, 1]; set --trials to the rollouts of a visit"
            )
        counts.append(whole.astype(np.int64))
    steps = []
    for visit in range(max(len(successes) for successes in counts)):
        rows = np.array([row for row, successes in enumerate(counts) if visit < len(successes)], dtype=np.int64)
        steps.append(Visits(rows, np.array([counts[row][visit] for row in rows]), np.full(len(rows), trials)))
    return PassRateLog(prompt_ids, tuple(steps))


def _from_allocations(path: Path) -> PassRateLog:
    table = _read_parquet(path)
    needed = {"step", "prompt_id", "successes", "trials"}
    if not needed <= set(table.column_names):
        raise ConfigError(f"{path} has no columns {sorted(needed - set(table.column_names))}: give allocations.parquet")
    rows = [row for row in table.to_pylist() if row["trials"] >= 2]
    prompt_ids = tuple(dict.fromkeys(row["prompt_id"] for row in rows))
    place = {prompt_id: index for index, prompt_id in enumerate(prompt_ids)}
    by_step: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row)
    steps = tuple(_visits(group, place) for _, group in sorted(by_step.items()))
    tasks = {row["prompt_id"]: row["task"] for row in rows} if "task" in table.column_names else None
    return PassRateLog(prompt_ids, steps, tasks=None if tasks is None else tuple(tasks[p] for p in prompt_ids))


def _visits(group: list[dict[str, Any]], place: dict[str, int]) -> Visits:
    rows = np.array([place[row["prompt_id"]] for row in group], dtype=np.int64)
    return Visits(rows, np.array([row["successes"] for row in group]), np.array([row["trials"] for row in group]))


def _with_texts(log: PassRateLog, path: Path) -> PassRateLog:
    texts: dict[str, str] = {}
    task_of: dict[str, str] = {}
    for row in open_rows(path).rows(("prompt_id", "text", "task", "prompt", "extra_info")):
        values = row.values
        if {"prompt_id", "text"} <= values.keys():
            texts[values["prompt_id"]] = values["text"]
            if values.get("task") is not None:
                task_of[values["prompt_id"]] = values["task"]
        elif {"prompt", "extra_info"} <= values.keys() and "index" in (values["extra_info"] or {}):
            messages = as_messages(values["prompt"], row.place)
            texts[str(values["extra_info"]["index"])] = "\n".join(message.content for message in messages)
        else:
            raise ConfigError(f"{row.place} has neither prompt_id and text nor prompt and extra_info.index")
    missing = [prompt_id for prompt_id in log.prompt_ids if prompt_id not in texts]
    if missing:
        raise ConfigError(f"{path} has no text for {len(missing)} prompts of the log, the first is {missing[0]!r}")
    labelled = all(prompt_id in task_of for prompt_id in log.prompt_ids)
    tasks = tuple(task_of[p] for p in log.prompt_ids) if labelled else log.tasks
    return PassRateLog(log.prompt_ids, log.steps, tuple(texts[p] for p in log.prompt_ids), tasks)


def _read_parquet(path: Path) -> Any:
    try:
        return pq.read_table(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from None


def sample_log(
    prompt_ids: Sequence[str], success_prob: Sequence[FloatArray], *, batch_size: int, trials: int, seed: int
) -> PassRateLog:
    """Sample a log from known success probabilities.

    Args:
        prompt_ids: Q prompts.
        success_prob: [Q] probabilities of each epoch.
        batch_size: prompts a step; an epoch visits each prompt once, in shuffled order.
        trials: rollouts a visit.
        seed: of order and outcomes.
    """
    rng = np.random.default_rng(seed)
    steps = []
    for p in success_prob:
        order = rng.permutation(len(prompt_ids))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            steps.append(Visits(rows, rng.binomial(trials, p[rows]), np.full(len(rows), trials)))
    return PassRateLog(tuple(prompt_ids), tuple(steps))
