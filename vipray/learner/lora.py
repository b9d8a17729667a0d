"""Low-rank adapters through `peft`: only they are trained; what is published is the merged model.

    W' = W + s B A        (arXiv:2106.09685 eq. 3, with s = alpha / r)

W and B are split over the ranks by the same rows, so a rank merges its rows with no more than the whole of A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from vipray.config import LoraConfig
from vipray.errors import ConfigError
from vipray.learner.shards import local_rows

_ADAPTER = "default"
_BASE = ".base_layer."


def add_adapters(model: Any, config: LoraConfig) -> None:
    """Freeze the model and give its linear layers adapters, without storage yet.

    Raises:
        ConfigError: no layer is called as `learner.lora.target_modules` says.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import inject_adapter_in_model

    targets = list(config.target_modules) or "all-linear"
    settings = PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, init_lora_weights=False)
    model.requires_grad_(False)
    try:
        inject_adapter_in_model(settings, model, _ADAPTER, low_cpu_mem_usage=True)
    except ValueError as error:  # how peft says that no module fits
        raise ConfigError(f"learner.lora.target_modules={targets} fit no layer of the model: {error}") from None


def initialise_adapters(model: Any, seed: int) -> None:
    """Draw A as `torch.nn.Linear` would and set B to zero, the same on any number of ranks."""
    for index, (_, layer) in enumerate(_adapted(model)):
        a = layer.lora_A[_ADAPTER].weight
        drawn = torch.empty(a.shape)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        start, local = local_rows(a)
        with torch.no_grad():
            local.copy_(drawn[start : start + len(local)])
            layer.lora_B[_ADAPTER].weight.to_local().zero_()


def public_name(name: str) -> str | None:
    """Name of a parameter in the plain model, None for an adapter's.

    >>> public_name("model.layers.0.mlp.up_proj.base_layer.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    return None if ".lora_" in name else name.replace(_BASE, ".")


def merged_rows(model: Any) -> dict[str, torch.Tensor]:
    """This rank's rows of what the adapters add to each adapted weight, by public name; a collective."""
    added = {}
    for name, layer in _adapted(model):
        a, b = (part[_ADAPTER].weight.detach() for part in (layer.lora_A, layer.lora_B))
        added[f"{name}.weight"] = layer.scaling[_ADAPTER] * (b.to_local().float() @ a.full_tensor().float())
    return added


def set_adapters(model: Any, *, enabled: bool) -> None:
    """Switch the adapters on or off: without them the model is the one that training began with."""
    for _, layer in _adapted(model):
        layer.enable_adapters(enabled)
        if not enabled:
            continue
        for parts in (layer.lora_A, layer.lora_B):
            parts.requires_grad_(True)


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module
