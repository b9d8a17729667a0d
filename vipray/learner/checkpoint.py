"""Sharded checkpoints of masters and optimiser, through `torch.distributed.checkpoint`.

Each rank writes and reads its own shards, so any number of ranks can go on from any other. Saving copies the shards,
then writes behind the training; the folder gets its final name once all ranks have written. A checkpoint that cannot be
written is no reason to end a training: every rank says so in the same line, one call later, and goes on.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
        self._namer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[Future[None], Path, int] | None = None
        self._problem: str | None = None  # of a save that failed before anything was written

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shapes of what is trained, by name."""
        return {name: list(tensor.shape) for name, tensor in self._masters.items()}

    def save(self, root: Path, manifest: CheckpointManifest, keep_last: int) -> str | None:
        """Start saving to the partial folder below `root`, which is made where the caller has not begun it.

        Returns what `finish` says of the save before this one.

        Raises:
            RuntimeError: a rank did not come.
        """
        before = self.finish()
        partial = partial_folder(root, manifest.step)
        self._problem = self._outcome(self._cleared(partial / _SUBFOLDER), root, manifest.step)
        if self._problem is not None:
            self._remove(partial)
            return before
        written = dcp.async_save(self._state(), checkpoint_id=partial / _SUBFOLDER, process_group=self._group)
        assert isinstance(written, Future)
        # Named at once, not by the next call: a crash must not cost what is on disk.
        named = self._namer.submit(self._name, written, root, manifest, keep_last)
        self._pending = (named, root, manifest.step)
        return before

    def finish(self) -> str | None:
        """Wait until the last save is complete; return None, or one line on why it failed, the same on all ranks.

        What was written of a save that failed is removed; the checkpoints before it are as they were.

        Raises:
            RuntimeError: a rank did not come.
        """
        if self._pending is not None:
            (named, root, step), self._pending = self._pending, None
            self._problem = self._outcome(self._reason(named.exception()), root, step)
        problem, self._problem = self._problem, None
        return problem

    def wait(self) -> None:
        """Wait until this rank has done its part of the last save, whatever the others do; log why it failed."""
        if self._pending is not None:
            (named, root, step), self._pending = self._pending, None
            reason = self._reason(named.exception())
            self._problem = reason and _message(reason, root, step)
        if self._problem is not None:
            _log.warning("%s", self._problem)

    def _cleared(self, folder: Path) -> str | None:
        """Have rank 0 make the learner's folder anew; return why it cannot."""
        if self._rank != 0:
            return None
        try:
            if folder.exists():  # of more ranks, it may be
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            return self._reason(error)
        return None

    def _name(self, written: Future[Any], root: Path, manifest: CheckpointManifest, keep_last: int) -> None:
        """Give the folder its name once all ranks have written, or remove what is there of it.

        Where a rank is gone, it stays: the caller's files are in it, who may save the same step with other ranks.
        """
        try:
            written.result()
            if self._rank == 0:  # whose part ends after everybody else's
                _log.info("checkpoint %s is complete", complete(root, manifest, keep_last))
        except (CheckpointException, OSError):
            self._remove(partial_folder(root, manifest.step))
            raise

    def _remove(self, partial: Path) -> None:
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)

    def _outcome(self, reason: str | None, root: Path, step: int) -> str | None:
        """Agree on what became of a save: the first rank's reason that has one, or None; a collective."""
        reasons: list[str | None] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(reasons, reason, group=self._group)
        found = next((each for each in reasons if each is not None), None)
        return found and _message(found, root, step)

    def _reason(self, error: BaseException | None) -> str | None:
        """An error in a line that names the rank."""
        if isinstance(error, CheckpointException):  # which every rank has, also of another one's failure
            return f"rank {next(iter(error.failures))}: {_first_cause(error)}"
        return None if error is None else f"rank {self._rank}: {_line(error)}"

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
    return _line(cause)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _message(reason: str, root: Path, step: int) -> str:
    return (
        f"the checkpoint of step {step} could not be written below {root}: {reason}; those before it are as they were"
    )
