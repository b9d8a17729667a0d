"""A run folder as columns: finished steps, their allocations, and the evaluations around them.

Legend: S finished steps, R allocation rows (one for each prompt of each step), E evaluation rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vipray.arrays import FloatArray, IntArray
from vipray.errors import ConfigError
from vipray.records import ALLOCATION_SCHEMA, EVALUATION_SCHEMA, Recovery, TimelineSpan
from vipray.report.recoveries import load_recoveries
from vipray.report.timeline import TIMELINE_FILE, read_timeline

METRICS_FILE = "metrics.jsonl"
ALLOCATIONS_FILE = "allocations.parquet"
EVALUATION_FILE = "evaluation.parquet"
CONFIG_FILE = "config.yaml"

_ALLOCATION_COLUMNS = pa.schema([field for field in ALLOCATION_SCHEMA if not field.nullable])  # no shadow allocations

StrArray = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Steps:
    """Metrics of the finished steps, each a column of shape [S] in order of step."""

    step: IntArray
    time_s: FloatArray
    generation_s: FloatArray
    training_s: FloatArray
    publishing_s: FloatArray
    loading_s: FloatArray  # from publishing to the first rollout of the new version
    predictor_exposed_s: FloatArray
    predictor_hidden_s: FloatArray
    allocator_exposed_s: FloatArray
    allocator_hidden_s: FloatArray
    reward_mean: FloatArray
    logprob_difference_mean: FloatArray
    num_rollouts: IntArray
    num_tokens: IntArray
    num_groups_without_signal: IntArray

    @property
    def num_steps(self) -> int:
        """S."""
        return len(self.step)

    @property
    def exposed_s(self) -> FloatArray:
        """[S] seconds of predictor and allocator that the step waited for."""
        return self.predictor_exposed_s + self.allocator_exposed_s

    @property
    def other_s(self) -> FloatArray:
        """[S] seconds of the step that no named part accounts for."""
        return np.maximum(self.time_s - self._named_s, 0.0)

    @property
    def is_overlapping(self) -> bool:
        """Whether the parts take longer than the steps, because some run at the same time."""
        return bool(np.nansum(self._named_s) > 1.05 * np.nansum(self.time_s))

    @property
    def _named_s(self) -> FloatArray:
        return self.generation_s + self.training_s + self.publishing_s + self.loading_s + self.exposed_s


@dataclass(frozen=True)
class Allocations:
    """What each prompt of each finished step got and gave, each a column of shape [R] in order of step."""

    step: IntArray
    prompt_id: StrArray
    task: StrArray
    success_prob: FloatArray
    n: IntArray
    successes: IntArray
    trials: IntArray

    @property
    def success_rate(self) -> FloatArray:
        """[R] `successes / trials`, NaN where no outcome was evidence."""
        return np.divide(self.successes, self.trials, out=np.full(len(self.n), np.nan), where=self.trials > 0)

    @property
    def is_first_visit(self) -> npt.NDArray[np.bool_]:
        """[R] whether the prompt had no earlier row, so that its prediction knew no outcome of its own."""
        first = np.zeros(len(self.n), dtype=np.bool_)
        first[np.unique(self.prompt_id, return_index=True)[1]] = True
        return first


@dataclass(frozen=True)
class Evaluations:
    """Outcomes of the evaluations, each a column of shape [E]; `step` counts the steps taken before it."""

    step: IntArray
    prompt_id: StrArray
    task: StrArray
    successes: IntArray
    trials: IntArray


@dataclass(frozen=True)
class RunData:
    """What a run folder holds.

    Attributes:
        path: the folder.
        steps: metrics of the finished steps.
        allocations: rows of the finished steps; those of a step that never finished are left out.
        evaluations: empty where the run was not evaluated.
        config_text: the resolved configuration as YAML, or None.
        num_skipped_lines: lines of the metrics that were cut off while they were written.
        timeline: spans of all actors in order of their start; empty where none were recorded.
        recoveries: what was lost and made good.
    """

    path: Path
    steps: Steps
    allocations: Allocations
    evaluations: Evaluations
    config_text: str | None
    num_skipped_lines: int
    timeline: tuple[TimelineSpan, ...] = ()
    recoveries: tuple[Recovery, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that were trained on or evaluated, in alphabetical order."""
        return tuple(sorted({*self.allocations.task.tolist(), *self.evaluations.task.tolist()}))


def load_run(run_dir: Path) -> RunData:
    """Read a run folder, whatever the run has written of it so far.

    Raises:
        ConfigError: `run_dir` is no run folder, or a file in it was not written by a run.
    """
    known = (METRICS_FILE, ALLOCATIONS_FILE, EVALUATION_FILE, CONFIG_FILE)
    if not any((run_dir / name).is_file() for name in known):
        reason = f"it holds no {METRICS_FILE}" if run_dir.is_dir() else "there is no such folder"
        raise ConfigError(f"{run_dir} is no run folder ({reason}): name the output folder of a run")
    rows, num_skipped_lines = _read_metrics(run_dir / METRICS_FILE)
    steps = _steps(rows, run_dir / METRICS_FILE)
    config_path = run_dir / CONFIG_FILE
    return RunData(
        path=run_dir,
        steps=steps,
        allocations=_allocations(_read_table(run_dir / ALLOCATIONS_FILE, _ALLOCATION_COLUMNS), steps.step),
        evaluations=_evaluations(_read_table(run_dir / EVALUATION_FILE, EVALUATION_SCHEMA)),
        config_text=config_path.read_text(encoding="utf-8", errors="replace") if config_path.is_file() else None,
        num_skipped_lines=num_skipped_lines,
        timeline=read_timeline(run_dir / TIMELINE_FILE),
        recoveries=load_recoveries(run_dir),
    )


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Rows in order of step, and the number of torn lines. A step that was done again counts as last written."""
    if not path.is_file():
        return [], 0
    by_step: dict[int, dict[str, Any]] = {}
    num_skipped = 0
    for line in path.read_bytes().split(b"\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:  # torn JSON or torn UTF-8: the run was interrupted while it wrote the line
            num_skipped += 1
            continue
        if not isinstance(row, dict):
            raise ConfigError(f"{path} holds a line that is no JSON object: it is not the metrics of a run")
        by_step[_int(row, "step", path)] = row
    return [by_step[step] for step in sorted(by_step)], num_skipped


def _steps(rows: Sequence[Mapping[str, Any]], path: Path) -> Steps:
    def ints(key: str) -> IntArray:
        return np.array([_int(row, key, path) for row in rows], dtype=np.int64)

    def floats(key: str) -> FloatArray:
        return np.array([_float(row, key, path) for row in rows], dtype=np.float64)

    return Steps(
        step=ints("step"),
        time_s=floats("step/time_s"),
        generation_s=floats("time/generation_s"),
        training_s=floats("time/training_s"),
        publishing_s=floats("time/publishing_s"),
        loading_s=floats("time/loading_s"),
        predictor_exposed_s=floats("predictor/exposed_s"),
        predictor_hidden_s=floats("predictor/hidden_s"),
        allocator_exposed_s=floats("allocator/exposed_s"),
        allocator_hidden_s=floats("allocator/hidden_s"),
        reward_mean=floats("reward/mean"),
        logprob_difference_mean=floats("engine/logprob_difference/mean"),
        num_rollouts=ints("rollouts/count"),
        num_tokens=ints("rollouts/tokens"),
        num_groups_without_signal=ints("groups/without_signal"),
    )


def _float(row: Mapping[str, Any], key: str, path: Path) -> float:
    value = _value(row, key, path)
    if value is None:  # JSON has no NaN: a mean over nothing is null
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: {key!r} must be a number, got {value!r}: it is not the metrics of a run")
    return float(value)


def _int(row: Mapping[str, Any], key: str, path: Path) -> int:
    value = _float(row, key, path)
    if not value.is_integer():
        raise ConfigError(f"{path}: {key!r} must be a whole number, got {row[key]!r}: it is not the metrics of a run")
    return int(value)


def _value(row: Mapping[str, Any], key: str, path: Path) -> Any:
    if key not in row:
        raise ConfigError(f"{path}: a line has no {key!r}: report the run with the version that trained it")
    return row[key]


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The file's rows with the columns of `schema`; no rows where the file is missing."""
    if not path.is_file():
        return schema.empty_table()
    try:
        return pq.read_table(path).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}): move it away to report the run without it") from None


def _allocations(table: pa.Table, finished: IntArray) -> Allocations:
    columns = _last_written(table)
    kept = np.isin(columns["step"], finished)
    return Allocations(
        step=columns["step"][kept],
        prompt_id=columns["prompt_id"][kept],
        task=columns["task"][kept],
        success_prob=columns["success_prob"][kept],
        n=columns["n"][kept],
        successes=columns["successes"][kept],
        trials=columns["trials"][kept],
    )


def _evaluations(table: pa.Table) -> Evaluations:
    columns = _last_written(table)
    return Evaluations(
        step=columns["step"],
        prompt_id=columns["prompt_id"],
        task=columns["task"],
        successes=columns["successes"],
        trials=columns["trials"],
    )


def _last_written(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """Columns in order of step, with one row for each (step, prompt): a step that was done again counts once."""
    columns = {
        field.name: np.array(table[field.name].to_pylist(), dtype=np.str_)
        if pa.types.is_string(field.type)
        else table[field.name].to_numpy()
        for field in table.schema
    }
    pairs = zip(columns["step"].tolist(), columns["prompt_id"].tolist(), strict=True)
    row_of = {pair: row for row, pair in enumerate(pairs)}
    rows = np.array(sorted(row_of.values(), key=lambda row: (columns["step"][row], row)), dtype=np.int64)
    return {name: column[rows] for name, column in columns.items()}
