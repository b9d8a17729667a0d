"""A checkpoint as a Hugging Face folder, with the numbers that the engines were given for that version."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vipray.checkpoints import CheckpointManifest, read_manifest
from vipray.errors import ConfigError
from vipray.learner.checkpoint import read_masters
from vipray.learner.model_folder import ensure_model_folder
from vipray.learner.rounding import round_stochastically

_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"


def export_checkpoint(checkpoint: Path, folder: Path, *, dtype: str, cache_dir: str) -> CheckpointManifest:
    """Write `folder`, which `AutoModelForCausalLM` and vLLM load; it appears when it is complete.

    Args:
        checkpoint: complete, such as `checkpoints/step-000010`.
        folder: does not exist yet.
        dtype: `bfloat16` gives the published numbers of that version, `float32` the masters.
        cache_dir: where a GGUF file is unpacked, as `model.cache_dir`.

    Raises:
        ConfigError: the checkpoint is not complete, `folder` exists, or the model it was trained from is gone.
        CheckpointError: it does not hold the model's weights.
    """
    manifest = read_manifest(checkpoint)
    if folder.exists():
        raise ConfigError(f"{folder} exists already: give a folder that does not")
    source = ensure_model_folder(manifest.model, cache_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        if manifest.lora_rank:
            _merge(weights, checkpoint, manifest)
        else:
            shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
            for name, master in read_masters(checkpoint, shapes).items():
                weights[name].copy_(master)
        if dtype == "bfloat16" and manifest.rounding == "stochastic":
            for name, weight in weights.items():
                weight.copy_(round_stochastically(weight, manifest.seed, manifest.step, 0, name))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        model.to(getattr(torch, dtype)).save_pretrained(partial)
        AutoTokenizer.from_pretrained(source).save_pretrained(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _merge(weights: dict[str, Any], checkpoint: Path, manifest: CheckpointManifest) -> None:
    """Add s B A to every weight that has an adapter in the checkpoint."""
    adapted = [name.removesuffix(_LORA_A) for name in manifest.trained if name.endswith(_LORA_A)]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in adapted:
        rows, columns = weights[f"{layer}.weight"].shape
        shapes[layer + _LORA_A] = (manifest.lora_rank, columns)
        shapes[layer + _LORA_B] = (rows, manifest.lora_rank)
    masters = read_masters(checkpoint, shapes)
    scale = manifest.lora_alpha / manifest.lora_rank
    for layer in adapted:
        weights[f"{layer}.weight"].add_(scale * (masters[layer + _LORA_B] @ masters[layer + _LORA_A]))
