"""A learner without a model, for trying out faults: never in place of one that learns. Without torch.

Its state is a vector that every step moves by a function of the batch: of the step, of each row in order and of the
prompts' weights. Two runs end with the same numbers only if they trained on the same batches in the same order, so a
run that was interrupted can be compared with one that was not.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vipray.checkpoints import CheckpointManifest, complete, partial_folder, read_manifest
from vipray.config import ScriptedConfig
from vipray.errors import CheckpointError
from vipray.learner.batch import check_batch
from vipray.learner.rendezvous import Rendezvous
from vipray.learner.trainer_protocol import PolicyOptions
from vipray.records import ROLLOUT_SCHEMA, Allocation, TensorEntry, TensorPiece, WeightManifest

_log = logging.getLogger(__name__)
_NAME = "scripted.vector"
_DECAY = 0.9  # of what was there, so that the order of steps matters
_STATE = Path("learner", "vector.npz")
_LEARNED_FROM = ("prompt_id", "k", "reward", "completion_token_ids")  # what a step depends on, row by row


@dataclass(frozen=True)
class ScriptedOptions:
    """What a scripted rank needs beyond `ScriptedConfig`: the run's seed, and `model.path` for its checkpoints."""

    seed: int = 0
    model_source: str = "scripted"


class ScriptedTrainer:
    """`LearnerRank` whose ranks hold the same vector, publish an equal share of it each, and never wait for another.

    Args:
        config: of what is scripted.
        options: seed of the first vector, and the name of the model; a `TrainerOptions` will do.
        rendezvous: which rank it is, and of how many.
        sleep: stands in for computing.
    """

    def __init__(
        self,
        config: ScriptedConfig,
        options: PolicyOptions,
        rendezvous: Rendezvous,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._options = options
        self._rendezvous = rendezvous
        self._sleep = sleep
        self._vector = np.random.default_rng([options.seed]).standard_normal(config.parameters)
        self._problem: str | None = None  # of the last save

    @property
    def num_chunks(self) -> int:
        """Chunks of a publication that each rank gives."""
        return 1

    @property
    def summary(self) -> str:
        """One line about how it computes."""
        return f"a script: {self._config.parameters} numbers that stand in for a model"

    def train(self, rollouts: Sequence[pa.RecordBatch], allocation: Allocation) -> dict[str, float]:
        """Move the vector by a verified batch, in record batches of any sizes; return metrics.

        `learner/fingerprint` is the sum of the vector: equal in runs that have trained on the same.

        Raises:
            BatchContractError: the batch is not exactly the allocation's.
        """
        table = pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA)
        check_batch(table, allocation)
        rows = table.select(_LEARNED_FROM).to_pylist()
        self._sleep(self._config.training_s)
        move = np.random.default_rng(list(_digest(rows, allocation))).standard_normal(len(self._vector))
        self._vector = _DECAY * self._vector + move
        rewards: dict[str, set[float | None]] = {}
        for row in rows:
            rewards.setdefault(row["prompt_id"], set()).add(row["reward"])
        return {
            "engine/logprob_difference/mean": 0.0,
            "engine/logprob_difference/max": 0.0,
            "groups/without_signal": float(sum(len(found) == 1 for found in rewards.values())),
            "learner/loss": 0.0,
            "learner/tokens": float(sum(len(row["completion_token_ids"]) for row in rows)),
            "learner/grad_norm": float(np.linalg.norm(move)),
            "learner/learning_rate": 0.0,
            "learner/optimizer_steps": 1.0,
            "learner/skipped_step": 0.0,
            "learner/fingerprint": math.fsum(self._vector),
        }

    def publish(self, version: int) -> Iterator[Any]:
        """Yield the chunk (uint8 array) of this rank's share of the vector, and the `WeightManifest`."""
        shares = np.array_split(self._vector, self._rendezvous.num_ranks)
        yield shares[self._rendezvous.rank].copy().view(np.uint8)
        sizes = tuple(share.nbytes for share in shares)
        pieces = tuple(TensorPiece(rank, 0, size) for rank, size in enumerate(sizes))
        entry = TensorEntry(_NAME, "float64", self._vector.shape, pieces)
        yield WeightManifest(version, (entry,), sizes, len(shares))

    def save(self, root: Path, step: int, keep_last: int, run: Mapping[str, Any] | None = None) -> str | None:
        """Save a checkpoint of the state after `step` steps, and return what `finish_saving` says of the one before.

        Rank 0 has written it, and given it its name, when it returns; only rank 0 knows of a failure.
        """
        before = self.finish_saving()
        if self._rendezvous.rank == 0:
            try:
                self._write(root, self._manifest(step, run), keep_last)
            except OSError as error:
                shutil.rmtree(partial_folder(root, step), ignore_errors=True)
                self._problem = (
                    f"the checkpoint of step {step} could not be written below {root}: {error}; those before it are "
                    "as they were"
                )
        return before

    def finish_saving(self) -> str | None:
        """Return None, or one line on why the last save failed."""
        problem, self._problem = self._problem, None
        return problem

    def load(self, folder: Path) -> int:
        """Go on from a checkpoint of any number of ranks; return the training steps that were taken before it.

        Raises:
            ConfigError: it is not complete.
            CheckpointError: it is of another model, or damaged.
        """
        manifest = read_manifest(folder)
        if manifest.trained != [_NAME] or manifest.shapes != [[len(self._vector)]]:
            raise CheckpointError(
                f"checkpoint {folder} is of another model, {manifest.model}, than a vector of {len(self._vector)} "
                "numbers; set learner.engine and scripted.parameters as they were"
            )
        try:
            with np.load(folder / _STATE) as state:
                vector = state["vector"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"checkpoint {folder} is damaged: {_STATE}: {error}") from None
        self._vector = vector
        return manifest.step

    def shutdown(self) -> None:
        """Leave; nothing is under way."""
        if self._problem is not None:
            _log.warning("%s", self._problem)

    def _write(self, root: Path, manifest: CheckpointManifest, keep_last: int) -> None:
        path = partial_folder(root, manifest.step) / _STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        unnamed = path.with_name(f".{path.name}")
        with unnamed.open("wb") as file:
            np.savez(file, vector=self._vector)
        unnamed.replace(path)
        complete(root, manifest, keep_last)

    def _manifest(self, step: int, run: Mapping[str, Any] | None) -> CheckpointManifest:
        return CheckpointManifest(
            step=step,
            model=self._options.model_source,
            trained=[_NAME],
            shapes=[[len(self._vector)]],
            rounding="nearest",
            seed=self._options.seed,
            run=dict(run or {}),
        )


def _digest(rows: Sequence[Mapping[str, Any]], allocation: Allocation) -> bytes:
    """32 bytes that stand for a batch: rows in order, the step, and the prompts' weights."""
    content = (
        allocation.step,
        allocation.prompt_ids,
        allocation.prompt_weight.tolist(),
        [tuple(row[name] for name in _LEARNED_FROM) for row in rows],
    )
    return hashlib.sha256(repr(content).encode()).digest()
