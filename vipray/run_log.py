"""The files of a run, written as it goes: Parquet files are whole at any moment, metrics grow by a line a step."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vipray.errors import ConfigError
from vipray.records import ALLOCATION_SCHEMA, EVALUATION_SCHEMA, TimelineSpan
from vipray.state_files import whole_file

_SCHEMAS = {"allocations": ALLOCATION_SCHEMA, "evaluation": EVALUATION_SCHEMA}


def check_output_dir(folder: Path) -> None:
    """Raise `ConfigError` if `folder` holds another run, or is no folder at all.

    What a run that never came to a step has left may be written over.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"run.output_root/run.name={folder} is a file: set run.name to another name")
    metrics = folder / "metrics.jsonl"
    never_began = metrics.is_file() and not metrics.stat().st_size and not (folder / "rollouts").exists()
    if folder.is_dir() and any(folder.iterdir()) and not never_began:
        raise ConfigError(f"run.name={folder.name}: {folder} already holds a run: set run.name to another or remove it")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file, whole or not at all."""
    with whole_file(path, fsync=False) as partial:
        pq.write_table(table, partial)


class RunLog:
    """Writes `config.yaml`, `prompts.parquet`, `metrics.jsonl`, `timeline.jsonl` and the tables `*.parquet`.

    Args:
        folder: of the run.
        config_yaml: its resolved configuration.
        prompts: its prompt set.
        resume_at: go on after so many training steps with what the folder holds, if anything. What a run wrote after
            them is removed, since it comes again: their metrics, allocations and rollouts, and later evaluations.
            Spans and recoveries stay, because that time was spent.

    Raises:
        ConfigError: the folder cannot be written to, or holds a table that cannot be read.
    """

    def __init__(self, folder: Path, config_yaml: str, prompts: pa.Table, resume_at: int | None = None) -> None:
        self.folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._timeline = folder / "timeline.jsonl"
        self._recoveries = folder / "recoveries.jsonl"
        self._tables = {name: schema.empty_table() for name, schema in _SCHEMAS.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(config_yaml)
            write_table(prompts, folder / "prompts.parquet")
            self._metrics.touch()
            if resume_at is not None:
                self._go_back(resume_at)
            elif not self._metrics.stat().st_size:  # a run that never came to a step has left its spans
                self._timeline.unlink(missing_ok=True)
                self._recoveries.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"run.output_root: {folder} cannot be written to: {error}") from None

    def add_step(self, metrics: Mapping[str, float], allocation_rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one step: a line of metrics and a row for each of its prompts (`ALLOCATION_SCHEMA`)."""
        self._add_rows("allocations", allocation_rows)
        _append(self._metrics, [{key: _or_null(value) for key, value in metrics.items()}])

    def add_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add one evaluation: a row for each prompt (`EVALUATION_SCHEMA`). It replaces an earlier one of its step."""
        rows = [dict(row) for row in rows]
        again = pc.field("step").isin(sorted({int(row["step"]) for row in rows}))
        self._tables["evaluation"] = self._tables["evaluation"].filter(~again)
        self._add_rows("evaluation", rows)

    def add_spans(self, spans: Iterable[TimelineSpan]) -> None:
        """Append to the timeline: a line for each span."""
        _append(self._timeline, map(dataclasses.asdict, spans))

    def add_recovery(self, row: Mapping[str, Any]) -> None:
        """Append to `recoveries.jsonl` what was lost and how the run went on: plain values by name."""
        _append(self._recoveries, [{key: _or_null(value) for key, value in row.items()}])

    def _add_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        new = pa.Table.from_pylist([dict(row) for row in rows], schema=_SCHEMAS[name])
        self._tables[name] = pa.concat_tables([self._tables[name], new]).combine_chunks()
        write_table(self._tables[name], self.folder / f"{name}.parquet")

    def _go_back(self, step: int) -> None:
        """Leave in the folder what a run had written when it had taken `step` training steps.

        The evaluation after `step` steps stays: where it comes again, it replaces the one that is there.
        """
        lines = _whole_lines(self._metrics)
        _rewrite(self._metrics, [row for row in lines if row["step"] < step])
        for path in (self._timeline, self._recoveries):
            if path.exists():
                _rewrite(path, _whole_lines(path))
        kept = {"allocations": pc.field("step") < step, "evaluation": pc.field("step") <= step}
        for name, condition in kept.items():
            path = self.folder / f"{name}.parquet"
            if path.exists():
                self._tables[name] = _read_table(path, _SCHEMAS[name]).filter(condition)
                write_table(self._tables[name], path)
        _keep_steps(self.folder / "rollouts", range(step))
        _keep_steps(self.folder / "evaluation", set(self._tables["evaluation"].column("step").to_pylist()))


def _or_null(value: Any) -> Any:
    """The value, or None for a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a") as file:
        file.write(lines)


def _rewrite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with whole_file(path) as partial:
        partial.touch()
        _append(partial, rows)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without lines that were torn when the run was interrupted."""
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:  # torn JSON or torn UTF-8
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Raises `ConfigError` for a file that is no such table."""
    try:
        return pq.read_table(path, partitioning=None).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        details = " ".join(str(error).split())
        raise ConfigError(f"{path} is damaged or of another version: {details}; move it away to go on") from None


def _keep_steps(folder: Path, steps: Collection[int]) -> None:
    """Remove the folders `step=…` of all other steps."""
    for path in folder.glob("step=*"):
        number = path.name.removeprefix("step=")
        if number.isdecimal() and int(number) not in steps:
            shutil.rmtree(path)
