"""The files of a run, written as it goes: Parquet files are whole at any moment, metrics grow by a line a step."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vipray.errors import ConfigError
from vipray.records import ALLOCATION_SCHEMA, EVALUATION_SCHEMA, TimelineSpan


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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        pq.write_table(table, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class RunLog:
    """Writes `config.yaml`, `prompts.parquet`, `metrics.jsonl`, `timeline.jsonl` and the tables `*.parquet`.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, config_yaml: str, prompts: pa.Table) -> None:
        self.folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._timeline = folder / "timeline.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(config_yaml)
            write_table(prompts, folder / "prompts.parquet")
            self._metrics.touch()
            if not self._metrics.stat().st_size:  # a run that never came to a step has left its spans
                self._timeline.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"run.output_root: {folder} cannot be written to: {error}") from None
        self._rows: dict[str, list[dict[str, Any]]] = {"allocations": [], "evaluation": []}

    def add_step(self, metrics: Mapping[str, float], allocation_rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one step: a line of metrics and a row for each of its prompts (`ALLOCATION_SCHEMA`)."""
        self._add_rows("allocations", ALLOCATION_SCHEMA, allocation_rows)
        finite = {key: value if math.isfinite(value) else None for key, value in metrics.items()}  # JSON has no NaN
        with self._metrics.open("a") as file:
            file.write(json.dumps(finite) + "\n")

    def add_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one evaluation: a row for each prompt (`EVALUATION_SCHEMA`)."""
        self._add_rows("evaluation", EVALUATION_SCHEMA, rows)

    def add_spans(self, spans: Iterable[TimelineSpan]) -> None:
        """Append to the timeline: a line for each span."""
        lines = "".join(json.dumps(dataclasses.asdict(span)) + "\n" for span in spans)
        with self._timeline.open("a") as file:
            file.write(lines)

    def _add_rows(self, name: str, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows[name].extend(dict(row) for row in rows)
        write_table(pa.Table.from_pylist(self._rows[name], schema=schema), self.folder / f"{name}.parquet")
