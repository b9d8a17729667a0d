"""Sharded checkpoints of masters and optimiser, through `torch.distributed.checkpoint`.

Each rank writes and reads its own shards, so any number of ranks can go on from any other. Saving copies the shards,
then writes behind the training; the folder gets its final name once all ranks have written.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from vipray.checkpoints import CheckpointManifest, complete, partial_folder, read_manifest
from vipray.errors import CheckpointError

_log = logging.getLogger(__name__)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_SUBFOLDER = "learner"


class Checkpointer:
    """Saves and loads the learner's state; every method is called on all ranks alike.

    Args:
        masters: trained tensors by name, the optimiser's parameters.
        optimizer: AdamW over `masters`.
        rank: of this process.
        timeout: of collectives.
    """

    def __init__(
        self, masters: Mapping[str, Any], optimizer: torch.optim.Optimizer, rank: int, timeout: timedelta
    ) -> None:
        self._masters = masters
        self._optimizer = optimizer
        self._rank = rank
        # A group of its own: it is used beside the training's collectives.
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self._pending: tuple[Future[Any], Path, CheckpointManifest] | None = None

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shapes of what is trained, by name."""
        return {name: list(tensor.shape) for name, tensor in self._masters.items()}

    def save(self, root: Path, manifest: CheckpointManifest, keep_last: int) -> None:
        """Start saving to a folder below `root`; `finish` or the next `save` waits for it.

        Raises:
            CheckpointError: the save before this one failed.
        """
        self.finish()
        partial = partial_folder(root, manifest.step)
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)  # left by a crash
            partial.mkdir(parents=True)
        dist.barrier(self._group)
        written = dcp.async_save(self._state(), checkpoint_id=partial / _SUBFOLDER, process_group=self._group)
        assert isinstance(written, Future)
        named: Future[Any] = Future()

        def give_name(written: Future[Any]) -> None:  # at once: a crash must not cost what is on disk
            try:
                written.result()
                if self._rank == 0:  # whose part ends after everybody else's
                    _log.info("checkpoint %s is complete", complete(root, manifest, keep_last))
                named.set_result(None)
            except (CheckpointException, OSError, RuntimeError) as error:
                named.set_exception(error)

        written.add_done_callback(give_name)
        self._pending = (named, root, manifest)

    def finish(self) -> None:
        """Wait until the last save is complete.

        Raises:
            CheckpointError: it failed; the checkpoints before it are as they were.
        """
        if self._pending is None:
            return
        named, root, manifest = self._pending
        self._pending = None
        try:
            named.result()
        except (CheckpointException, OSError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint of step {manifest.step} could not be written below {root}: "
                f"{str(error).strip().splitlines()[0]}; those before it are as they were"
            ) from error

    def load(self, folder: Path) -> CheckpointManifest:
        """Load a checkpoint, whatever number of ranks it was saved by.

        Raises:
            ConfigError: it is not complete.
            CheckpointError: it is of another model.
        """
        manifest = read_manifest(folder)
        saved, mine = dict(zip(manifest.trained, manifest.shapes, strict=True)), self.shapes
        if saved != mine:
            name = next(name for name in [*saved, *mine] if saved.get(name) != mine.get(name))
            raise CheckpointError(
                f"checkpoint {folder} is of another model, {manifest.model}: {name} is {saved.get(name)} there and "
                f"{mine.get(name)} here; set model.path and learner.lora as they were"
            )
        state = self._state()
        try:
            dcp.load(state, checkpoint_id=folder / _SUBFOLDER, process_group=self._group)
        except CheckpointException as error:
            raise CheckpointError(f"checkpoint {folder} is damaged: {_first_cause(error)}") from None
        for name, master in self._masters.items():
            self._optimizer.state[master]["step"].fill_(float(state["optimizer"][name]["step"]))
        return manifest

    def _state(self) -> dict[str, Any]:
        return {
            "masters": {name: tensor.detach() for name, tensor in self._masters.items()},
            "optimizer": {name: self._moments(tensor) for name, tensor in self._masters.items()},
        }

    def _moments(self, master: Any) -> dict[str, Any]:
        """The optimiser's state of a tensor; zeros before its first step."""
        state = self._optimizer.state[master]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=master.device)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(master, requires_grad=False)
        return dict(state)


def read_masters(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Read whole master weights of a checkpoint, in one process and without a group.

    Raises:
        CheckpointError: it does not hold these tensors.
    """
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    try:
        dcp.load({"masters": tensors}, checkpoint_id=folder / _SUBFOLDER, no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"checkpoint {folder} does not hold the model's weights: {_first_cause(error)}") from None
    return tensors


def _first_cause(error: CheckpointException) -> str:
    cause, _ = next(iter(error.failures.values()))
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
