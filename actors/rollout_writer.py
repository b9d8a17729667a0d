"""The rollout writer: puts verified rollouts on disk, so that the controller never holds a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from vipray.records import ROLLOUT_SCHEMA, RolloutId
from vipray.run_log import write_table


class RolloutWriter:
    """Writes below one run folder; it is placed on the node of the driver, where that folder is."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    @ray.method(concurrency_group="health")
    def health(self) -> None:
        """Answer, beside whatever else is under way."""

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

    def write_file(self, path: str, *rollouts: pa.RecordBatch) -> int:
        """Write rollouts to a Parquet file, in the order in which they are given; return their number."""
        table = pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA)
        write_table(table, Path(path))
        return table.num_rows

    def read(self, step: int, rollout_ids: Sequence[RolloutId]) -> pa.RecordBatch:
        """Read a training step's rollouts back, in the order of `rollout_ids`.

        Raises:
            KeyError: one of them is not there.
        """
        table = pq.read_table(self._run_dir / "rollouts" / f"step={step:05d}" / "part-0.parquet", partitioning=None)
        keys = zip(table["prompt_id"].to_pylist(), table["k"].to_pylist(), strict=True)
        place = {key: row for row, key in enumerate(keys)}
        rows = [place[rollout_id.prompt_id, rollout_id.k] for rollout_id in rollout_ids]
        (batch,) = table.take(rows).combine_chunks().cast(ROLLOUT_SCHEMA).to_batches()
        return batch
