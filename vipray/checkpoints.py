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
    """Declare a checkpoint complete, then remove all but the newest `keep_last`; return its folder.

    The last complete one exists at every moment: the new one takes its name before an old one goes.
    """
    partial, folder = partial_folder(root, manifest.step), root / f"step-{manifest.step:06d}"
    (partial / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    if folder.exists():  # a run that was resumed before it comes to the same step again
        shutil.rmtree(folder)
    partial.rename(folder)
    for old in complete_checkpoints(root)[:-keep_last]:
        shutil.rmtree(old)
    return folder


def complete_checkpoints(root: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    found = [(int(match[1]), path) for path in root.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


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
