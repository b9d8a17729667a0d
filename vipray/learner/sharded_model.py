"""A Hugging Face causal language model, sharded over the ranks before it has any storage.

The model is built on the meta device and sharded there, so that a rank only ever holds its own rows; each rank then
reads these rows from the safetensors files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from accelerate import init_empty_weights
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from vipray.config import LoraConfig
from vipray.errors import ConfigError
from vipray.learner.lora import add_adapters, initialise_adapters, public_name


def build_sharded_model(
    folder: Path,
    mesh: DeviceMesh,
    *,
    compute_dtype: torch.dtype,
    attention: str,
    activation_checkpointing: bool = False,
    lora: LoraConfig | None = None,
    seed: int = 0,
) -> Any:
    """Return the model of `folder`, in fp32 shards, ready to train; a collective.

    Args:
        folder: saved by `save_pretrained`, with safetensors files.
        mesh: one-dimensional.
        compute_dtype: what the ranks gather and compute in; gradients are reduced in fp32.
        attention: `sdpa` or `flex_attention`.
        activation_checkpointing: keep a layer's input alone for the backward pass, and compute the rest again.
        lora: settings of adapters; None or rank 0 trains every weight.
        seed: of the adapters.

    Raises:
        ConfigError: the files do not hold the model's parameters under their own names.
    """
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation=attention
        )
    model.tie_weights()  # before sharding: a tied head is one parameter to FSDP
    model.config.use_cache = False
    if lora is not None and lora.rank:
        add_adapters(model, lora)
    if activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in model.get_decoder().layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    _materialise(model, torch.device(mesh.device_type))
    _load(model, folder)
    if lora is not None and lora.rank:
        initialise_adapters(model, seed)
    return model


def _materialise(model: Any, device: torch.device) -> None:
    """Give every shard storage, and every buffer the value that it was built with."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, value in buffers.items():
        model.get_buffer(name).copy_(value)


def _load(model: Any, folder: Path) -> None:
    named = {public_name(name): parameter for name, parameter in model.named_parameters()}
    shards = {name: parameter.detach() for name, parameter in named.items() if name is not None}
    try:
        dcp.load(shards, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    except CheckpointException as error:
        causes = {str(cause) for cause, _ in error.failures.values()}
        raise ConfigError(
            f"model.path={folder}: its safetensors files are not those of its config.json: {'; '.join(sorted(causes))}"
        ) from None
