"""What a rank of the learner group can do, whatever it trains. Without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from vipray.records import Allocation


class LearnerRank(Protocol):
    """One rank; every method is called on all ranks, with the same arguments."""

    @property
    def num_chunks(self) -> int:
        """Chunks of a publication that each rank gives."""

    @property
    def summary(self) -> str:
        """One line about how it computes."""

    def train(self, rollouts: Sequence[pa.RecordBatch], allocation: Allocation) -> dict[str, float]:
        """Train on a verified batch, in record batches of any sizes; return metrics, the same on every rank.

        Raises:
            BatchContractError: the batch is not exactly the allocation's.
        """

    def publish(self, version: int) -> Iterator[Any]:
        """Yield each chunk (uint8 array) of what this rank holds of a version, and the `WeightManifest` last."""

    def save(self, root: Path, step: int, keep_last: int, run: Mapping[str, Any] | None = None) -> str | None:
        """Start saving the state after `step` steps; return what `finish_saving` says of the save before."""

    def finish_saving(self) -> str | None:
        """Wait until the last save is complete; return None, or one line on why it failed."""

    def load(self, folder: Path) -> int:
        """Go on from a checkpoint of any number of ranks; return the training steps that were taken before it.

        Raises:
            ConfigError: it is not complete.
            CheckpointError: it is of another model, or damaged.
        """

    def shutdown(self) -> None:
        """Complete what is being saved and leave the group."""


class PolicyOptions(Protocol):
    """What any rank is told of the policy: the part of `TrainerOptions` that needs no model."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def model_source(self) -> str:
        """`model.path`, for checkpoints to say what they are of."""
