"""Which dtype the learner computes in."""

from __future__ import annotations

import torch

PRECISIONS = ("auto", "fp32", "bf16")


def compute_dtype(precision: str, device_type: str, publish_dtype: torch.dtype) -> torch.dtype:
    """The dtype of `learner.precision`.

    `auto` takes bf16 where the engines sample with it and the device multiplies it natively: policy sampled and policy
    trained are then the same numbers. Where a CPU only emulates bf16, fp32 is faster.
    """
    if precision == "auto":
        native = device_type == "cuda" or _multiplies_bf16()
        return torch.bfloat16 if native and publish_dtype == torch.bfloat16 else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _multiplies_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(name in capabilities and capabilities[name] for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))
