"""The policy's Hugging Face folder; a GGUF file is unpacked to one, once a machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from vipray.errors import ConfigError
from vipray.sources import resolve_source

_LEAST_SHARE = 0.9  # of a model's rows that a tokenizer that belongs to it uses; padding takes a few per cent
_WEIGHTS = "*.safetensors"  # each rank reads its own rows of them


def check_model_source(source: str) -> Path:
    """Return the path behind `model.path` after a look at what is there.

    Raises:
        ConfigError: nothing there, a folder without `config.json` or weights, or a file that is not GGUF.
    """
    path = resolve_source("model.path", source)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"model.path={source} is a file and not .gguf: give a Hugging Face folder or a GGUF file")
        return path
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path={source} has no config.json: give a folder saved by save_pretrained")
    if not any(path.glob(_WEIGHTS)):
        raise ConfigError(f"model.path={source} has no weights ({_WEIGHTS}): give a folder saved by save_pretrained")
    return path


def ensure_model_folder(source: str, cache_dir: str) -> Path:
    """Return the Hugging Face folder of `model.path`, unpacking a GGUF file into `cache_dir` if need be.

    Safe to call from several processes at once: one unpacks, the others wait.
    """
    path = check_model_source(source)
    if path.is_dir():
        return path
    cache = Path(cache_dir).expanduser() / "models"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{path.stem}-{path.stat().st_size}"
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            partial = Path(tempfile.mkdtemp(dir=cache, prefix=".partial-"))
            try:
                _unpack_gguf(path, partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _unpack_gguf(gguf: Path, folder: Path) -> None:
    """Write the dequantised model in bfloat16, with its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model carries a quantization_config and refuses to be saved: a fresh one takes its weights.
    values = quantised.config.to_dict()
    values.pop("quantization_config", None)
    values.pop("_name_or_path", None)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def max_positions(folder: Path) -> int:
    """The longest sequence that the model was made for, in tokens.

    Raises:
        ConfigError: its `config.json` does not say.
    """
    return _from_config(folder, "max_position_embeddings", "n_positions")


def check_tokenizer(folder: Path, num_tokens: int, source: str) -> str | None:
    """Compare a tokenizer's number of tokens with the model's; return a sentence where they differ suspiciously.

    Models may have rows to spare, for the hardware's sake, but no token may be without one.

    Raises:
        ConfigError: the tokenizer has more tokens than the model.
    """
    vocab_size = _from_config(folder, "vocab_size")
    if num_tokens > vocab_size:
        raise ConfigError(
            f"model.path={source}: its tokenizer has {num_tokens} tokens, its config.json says vocab_size="
            f"{vocab_size}: they do not belong together"
        )
    if num_tokens < _LEAST_SHARE * vocab_size:
        return (
            f"warning: the tokenizer of {source} has {num_tokens} tokens and the model {vocab_size}: do they belong "
            "together?"
        )
    return None


def _from_config(folder: Path, *keys: str) -> int:
    config = json.loads((folder / "config.json").read_text())
    for values in (config, config.get("text_config", {})):
        for key in keys:
            if key in values:
                return int(values[key])
    raise ConfigError(f"model.path={folder}: config.json has no {keys[0]}; only such models are known here")
