"""Checkpoint folders: `step-000010` is complete when it exists; what is being written has another name.

checkpoints/
  step-000010/            learner/ (sharded), checkpoint.json
  .step-000020.partial/   under way, or left by a crash
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from vipray.errors import ConfigError

_NAME = re.compile(r"step-(\d{6,})")
_MANIFEST = "checkpoint.json"


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
    """

    step: int
    model: str
    trained: list[str]
    shapes: list[list[int]]
    rounding: str
    seed: int
    lora_rank: int = 0
    lora_alpha: int = 1


def partial_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return root / f".step-{step:06d}.partial"


def complete(root: Path, manifest: CheckpointManifest, keep_last: int) -> Path:
    """Declare a checkpoint complete, then remove all but this one and the newest others, `keep_last` in all.

    A complete checkpoint exists at every moment, and nothing that is half removed is taken for one: a folder loses its
    name before it loses its files. Returns the folder.
    """
    partial, folder = partial_folder(root, manifest.step), root / f"step-{manifest.step:06d}"
    (partial / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    if folder.exists():
        raise FileExistsError(f"{folder} is there already")
    partial.rename(folder)
    others = [path for path in complete_checkpoints(root) if path != folder]
    for old in others[: max(0, len(others) - keep_last + 1)]:
        unnamed = root / f".{old.name}.old"
        old.rename(unnamed)
        shutil.rmtree(unnamed)
    return folder


def complete_checkpoints(root: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    found = [(int(match[1]), path) for path in root.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / _MANIFEST).is_file()]


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read what a checkpoint says of itself.

    Raises:
        ConfigError: it is no complete checkpoint.
    """
    try:
        return CheckpointManifest(**json.loads((folder / _MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{folder} is no complete checkpoint ({type(error).__name__}): give a folder like checkpoints/step-000010"
        ) from None
