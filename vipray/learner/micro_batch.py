"""Tensors of one forward pass.

Packed, each completion sees its prompt and itself, at the positions it would have alone, so that log-probabilities and
gradients are those of separate sequences. Plain, the sequences of a unit are padded on the right, where causal
attention and recurrent layers do not look.

Legend: b rows, T tokens of a row, K places whose output is computed, M completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from vipray.learner.packing import Row, Unit

_PROMPT = 0  # the prompt's segment; completions count from 1


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of one forward pass and of its loss.

    Attributes:
        token_ids: [b, T].
        positions: [b, T]; None in a plain batch, where they count from 0.
        groups: [T] unit of each token, where packed; None in a plain batch.
        segments: [T] 0 for a prompt, k for its k-th completion; None in a plain batch.
        keep: [K] places whose output is computed.
        select: [M] where, in the flattened [b K] outputs, that for each completion token is.
        targets: [M] completion tokens.
        rollout: [M] rollout of each completion token, counted from 0.
        sampling_logprobs: [M] float32, under the policy that sampled.
        advantages: [M] float32.
        is_current: [M] whether the learner's own version sampled the token's rollout, from its start.
        weights: [M] float32; the loss is the weighted sum over tokens of all micro-batches of all ranks.
        is_filler: it only keeps the ranks in step.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor | None
    groups: torch.Tensor | None
    segments: torch.Tensor | None
    keep: torch.Tensor
    select: torch.Tensor
    targets: torch.Tensor
    rollout: torch.Tensor
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    is_current: torch.Tensor
    weights: torch.Tensor
    is_filler: bool = False

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        moved: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            moved[item.name] = value.to(device) if isinstance(value, torch.Tensor) else value
        return MicroBatch(**moved)


def packed_micro_batch(units: Row) -> MicroBatch:
    """One row of units: [prompt, completion 1, …, completion n, next prompt, …]."""
    tokens: list[int] = []
    positions: list[int] = []
    groups: list[int] = []
    segments: list[int] = []
    keep: list[int] = []
    for number, unit in enumerate(units):
        start, prompt = len(tokens), len(unit.prompt)
        tokens += unit.prompt
        positions += range(prompt)
        segments += [_PROMPT] * prompt
        for segment, rollout in enumerate(unit.rollouts, start=1):
            first, length = len(tokens), len(rollout.completion_token_ids)
            keep += [start + prompt - 1, *range(first, first + length - 1)]
            tokens += rollout.completion_token_ids
            positions += range(prompt, prompt + length)
            segments += [segment] * length
        groups += [number] * (len(tokens) - start)
    return MicroBatch(
        token_ids=torch.tensor([tokens]),
        positions=torch.tensor([positions]),
        groups=torch.tensor(groups),
        segments=torch.tensor(segments),
        keep=torch.tensor(keep),
        select=torch.arange(len(keep)),
        **_loss_tensors(units),
    )


def plain_micro_batch(unit: Unit) -> MicroBatch:
    """The sequences of a unit, padded on the right with the prompt's first token."""
    prompt, longest = len(unit.prompt), max(unit.lengths)
    rows = [
        [*unit.prompt, *rollout.completion_token_ids, *unit.prompt[:1] * (longest - len(rollout.completion_token_ids))]
        for rollout in unit.rollouts
    ]
    return MicroBatch(
        token_ids=torch.tensor(rows),
        positions=None,
        groups=None,
        segments=None,
        keep=torch.arange(prompt - 1, prompt + longest - 1),
        select=torch.tensor([row * longest + t for row, length in enumerate(unit.lengths) for t in range(length)]),
        **_loss_tensors((unit,)),
    )


def filler(token: int, *, packed: bool) -> MicroBatch:
    """Two tokens of no weight, for a rank that has fewer micro-batches than another."""
    zero, one = torch.zeros(1, dtype=torch.long), torch.zeros(1)
    return MicroBatch(
        token_ids=torch.tensor([[token, token]]),
        positions=torch.arange(2)[None] if packed else None,
        groups=torch.zeros(2, dtype=torch.long) if packed else None,
        segments=torch.tensor([_PROMPT, 1]) if packed else None,
        keep=zero,
        select=zero,
        targets=torch.tensor([token]),
        rollout=zero,
        sampling_logprobs=one,
        advantages=one,
        is_current=zero.bool(),
        weights=one,
        is_filler=True,
    )


def _loss_tensors(units: Sequence[Unit]) -> dict[str, Any]:
    rollouts = [rollout for unit in units for rollout in unit.rollouts]
    lengths = torch.tensor([len(rollout.completion_token_ids) for rollout in rollouts])
    advantages = torch.tensor([rollout.advantage for rollout in rollouts], dtype=torch.float32)
    weights = torch.tensor([rollout.token_weight for rollout in rollouts], dtype=torch.float32)
    is_current = torch.tensor([rollout.is_current for rollout in rollouts], dtype=torch.bool)
    return {
        "is_current": is_current.repeat_interleave(lengths),
        "targets": torch.tensor([token for rollout in rollouts for token in rollout.completion_token_ids]),
        "rollout": torch.arange(len(rollouts)).repeat_interleave(lengths),
        "sampling_logprobs": torch.tensor([v for rollout in rollouts for v in rollout.logprobs], dtype=torch.float32),
        "advantages": advantages.repeat_interleave(lengths),
        "weights": weights.repeat_interleave(lengths),
    }
