"""Checkpoint folders: `step-000010` is complete when it exists; what is being written has another name.

checkpoints/
  step-000010/              run/ (the driver's), learner/ (sharded), checkpoint.json
  .step-000020.partial/     under way, or left by a crash
  .step-000030.abandoned/   of a run that was resumed from an earlier step and went another way

`begin` makes the partial folder, everybody writes into it, and `complete` gives it its name.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vipray.errors import ConfigError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = re.compile(r"\.step-(\d{6,})\.partial")
_MANIFEST = "checkpoint.json"
RUN_FOLDER = "run"  # what the driver writes


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint says of itself.

    Attributes:
        step: training steps taken before it, which is also the policy version.
        model: source of the model, as in `model.path`.
        trained: names of the tensors that are trained, in order.
        shapes: their shapes.
        rounding: `stochastic` or `nearest`, as published.
        seed: of the rounding.
        lora_rank: of the adapters, 0 where every weight is trained.
        lora_alpha: of the adapters.
        run: what the driver says of the run, JSON-able.
    """

    step: int
    model: str
    trained: list[str]
    shapes: list[list[int]]
    rounding: str
    seed: int
    lora_rank: int = 0
    lora_alpha: int = 1
    run: dict[str, Any] = field(default_factory=dict)


def partial_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return root / f".step-{step:06d}.partial"


def begin(root: Path, step: int) -> Path:
    """Make the empty folder that the checkpoint of a step is written to, in place of one that a crash has left.

    Raises:
        OSError: the folder cannot be made.
    """
    partial = partial_folder(root, step)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def complete(root: Path, manifest: CheckpointManifest, keep_last: int) -> Path:
    """Declare a checkpoint complete, then remove all but this one and the newest others, `keep_last` in all.

    A complete checkpoint exists at every moment, also on a disk that loses power, and nothing that is half removed is
    taken for one: a folder loses its name before it loses its files. Returns the folder.

    Raises:
        OSError: it is not complete; its partial folder is there still.
    """
    partial, folder = partial_folder(root, manifest.step), root / f"step-{manifest.step:06d}"
    if folder.exists():
        raise FileExistsError(f"{folder} is there already")
    if manifest.run and not (partial / RUN_FOLDER).is_dir():
        raise FileNotFoundError(f"{partial} has no folder {RUN_FOLDER}, the driver's part")
    (partial / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    partial.rename(folder)
    _sync(root)
    _remove_superseded(root, folder, keep_last)
    return folder


def find_newest(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint, and a line for each newer folder that is none, newest first.

    Without a checkpoint, or without `root`, the folder is None.
    """
    skipped: list[str] = []
    found = [(step, 0, path) for step, path in _folders(root, _PARTIAL)]
    found += [(step, 1, path) for step, path in _folders(root, _NAME)]
    for step, is_named, path in sorted(found, reverse=True):
        problem = _problem(path, step) if is_named else "not complete"
        if problem is None:
            return path, skipped
        skipped.append(f"{path.name}: {problem}")
    return None, skipped


def set_apart_newer(root: Path, step: int) -> list[Path]:
    """Rename checkpoints after `step` to `.step-000020.abandoned`: a run that goes on from `step` goes another way.

    Folders that only look like checkpoints make way too. One that was set apart before under the same name is removed.
    Returns the new names, oldest first.

    Raises:
        OSError: a folder cannot be renamed.
    """
    renamed = []
    for number, path in _folders(root, _NAME):
        if number > step:
            apart = root / f".{path.name}.abandoned"
            if apart.exists():
                shutil.rmtree(apart)
            renamed.append(path.rename(apart))
    if renamed:
        _sync(root)
    return renamed


def complete_checkpoints(root: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    return [path for _, path in _folders(root, _NAME) if (path / _MANIFEST).is_file()]


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read what a checkpoint says of itself.

    Raises:
        ConfigError: it is no complete checkpoint.
    """
    try:
        return _read(folder)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{folder} is no complete checkpoint ({type(error).__name__}): give a folder like checkpoints/step-000010"
        ) from None


def _read(folder: Path) -> CheckpointManifest:
    return CheckpointManifest(**json.loads((folder / _MANIFEST).read_text()))


def _problem(folder: Path, step: int) -> str | None:
    """Why a folder with a checkpoint's name is none."""
    try:
        manifest = _read(folder)
    except (OSError, ValueError, TypeError) as error:
        return f"{_MANIFEST} cannot be read ({type(error).__name__})"
    if manifest.step != step:
        return f"{_MANIFEST} is of step {manifest.step}"
    is_whole = not manifest.run or (folder / RUN_FOLDER).is_dir()
    return None if is_whole else f"the folder {RUN_FOLDER} is missing"


def _folders(root: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Step and path of what is called so, oldest first."""
    paths = root.iterdir() if root.is_dir() else iter(())
    return sorted((int(match[1]), path) for path in paths if (match := name.fullmatch(path.name)))


def _remove_superseded(root: Path, newest: Path, keep_last: int) -> None:
    """Remove old checkpoints and leftovers of steps before; what cannot be removed is named and stays."""
    others = [path for path in complete_checkpoints(root) if path != newest]
    step = int(newest.name.removeprefix("step-"))
    superfluous = [path for number, path in _folders(root, _PARTIAL) if number < step]
    superfluous += root.glob(".step-*.old")  # half removed by a process that was killed
    try:
        for old in others[: max(0, len(others) - keep_last + 1)]:
            superfluous.append(old.rename(root / f".{old.name}.old"))
        for path in superfluous:
            shutil.rmtree(path)
    except OSError as error:
        _log.warning("checkpoint %s is complete, but an old one could not be removed: %s", newest, error)


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing for folders
            raise
    finally:
        os.close(descriptor)
