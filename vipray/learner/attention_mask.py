"""The block mask of a packed row: causal, and only to the own prompt and the own completion."""

from __future__ import annotations

from typing import Any

import torch

from vipray.learner.micro_batch import MicroBatch


def attention_mask(batch: MicroBatch, attention: str, dtype: torch.dtype) -> Any:
    """The mask as a model takes it: additive [1, 1, T, T] for SDPA, a `BlockMask` for flex attention.

    A plain batch needs none: its padding is on the right, where causal attention does not look.
    """
    if batch.groups is None or batch.segments is None:
        return None
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        length = len(batch.groups)
        sees = _sees(batch.groups, batch.segments)
        return create_block_mask(sees, None, None, length, length, device=str(batch.groups.device))
    place = torch.arange(len(batch.groups), device=batch.groups.device)
    visible = _sees(batch.groups, batch.segments)(None, None, place[:, None], place[None, :])
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[None, None]


def _sees(groups: torch.Tensor, segments: torch.Tensor) -> Any:
    """Whether the token at place `q` sees the one at `kv`, in the form that flex attention compiles."""

    def sees(_batch: Any, _head: Any, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        own = (segments[kv] == 0) | (segments[kv] == segments[q])
        return (kv <= q) & (groups[kv] == groups[q]) & own

    return sees
