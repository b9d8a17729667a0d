"""What a training has left in its folder, as the comparison of two runs needs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vipray.arrays import FloatArray
from vipray.checkpoints import complete_checkpoints, read_manifest
from vipray.config import Config
from vipray.evaluation.chaos_report import TrainedOn
from vipray.records import ALLOCATION_SCHEMA, ROLLOUT_SCHEMA
from vipray.report.run_data import ALLOCATIONS_FILE, METRICS_FILE

_VECTOR = Path("learner", "vector.npz")  # of the scripted learner


def trained_on(folder: Path) -> TrainedOn:
    """Read allocations and batches, of however many steps there are."""
    allocations = folder / ALLOCATIONS_FILE
    rows = [json.loads(line) for line in _lines(folder / METRICS_FILE)]
    files = sorted(folder.glob("rollouts/step=*/*.parquet"))
    tables = [pq.read_table(path, partitioning=None) for path in files]
    return TrainedOn(
        allocations=pq.read_table(allocations) if allocations.is_file() else ALLOCATION_SCHEMA.empty_table(),
        rollouts=pa.concat_tables([ROLLOUT_SCHEMA.empty_table(), *tables]),
        dropped={int(row["step"]): int(row["rollouts/dropped"]) for row in rows},
    )


def training_s(folder: Path) -> float:
    """Seconds of all steps."""
    return sum(float(json.loads(line)["step/time_s"]) for line in _lines(folder / METRICS_FILE))


def parameters_difference(one: Config, other: Config) -> float | None:
    """Largest difference between the scripted learners' parameters after the last step; None: there are none.

    One run alone that has them counts as infinitely different.
    """
    vectors = [_final_vector(config) for config in (one, other)]
    if vectors[0] is None and vectors[1] is None:
        return None
    if vectors[0] is None or vectors[1] is None:
        return float("inf")
    return float(np.abs(vectors[0] - vectors[1]).max())


def _final_vector(config: Config) -> FloatArray | None:
    folders = complete_checkpoints(config.checkpoint_dir)
    if config.learner.engine != "scripted" or not folders or read_manifest(folders[-1]).step != config.run.steps:
        return None
    with np.load(folders[-1] / _VECTOR) as state:
        vector: FloatArray = state["vector"].astype(np.float64)
    return vector


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
