"""The rollout writer: puts verified rollouts on disk, so that the controller never holds a token."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from vipray.records import ROLLOUT_SCHEMA
from vipray.run_log import write_table


class RolloutWriter:
    """Writes below one run folder; it is placed on the node of the driver, where that folder is."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def ready(self) -> None:
        """Return once the actor is up."""

    def shutdown(self) -> None:
        """Return once everything that was to be written is: calls are carried out in order."""

    def write(self, kind: str, step: int, *rollouts: pa.RecordBatch) -> int:
        """Write `<kind>/step=<step>/part-0.parquet`, whole or not at all; return the number of rollouts."""
        table = pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA)
        folder = self._run_dir / kind / f"step={step:05d}"
        write_table(table.sort_by([("prompt_id", "ascending"), ("k", "ascending")]), folder / "part-0.parquet")
        return table.num_rows
