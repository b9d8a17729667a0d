"""Groups packed behind their prompt: [prompt, completion 1, …, completion n] in one row.

Each completion sees the prompt and itself, at the positions it would have alone, so that log-probabilities and
gradients are those of n separate sequences while the prompt is computed once. A group that exceeds the row's token
limit is split over several rows, each with the prompt.

Legend: T tokens of a row, M completion tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

_NO_SEGMENT = 0  # the prompt's; completions count from 1


@dataclass(frozen=True)
class TrainingRollout:
    """One rollout as the loss sees it.

    Attributes:
        prompt_token_ids: what it was prompted with.
        completion_token_ids: M_k >= 1 tokens, as sampled.
        logprobs: M_k log-probabilities under the policy that sampled them.
        advantage: within its group.
        weight: its share in the loss, before the tokens are averaged: prompt weight / (B n).
    """

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    weight: float


@dataclass(frozen=True)
class PackedRow:
    """Tensors of one packed row.

    Attributes:
        token_ids: [T] prompt, then completions.
        positions: [T] restarting after the prompt for each completion.
        segments: [T] 0 for the prompt, k for the k-th completion.
        predictors: [M] place of the token whose output predicts each completion token.
        targets: [M] completion tokens.
        old_logprobs: [M] float32 under the sampling policy.
        advantages: [M] float32.
        weights: [M] float32; the loss is the weighted sum over tokens of all rows of all ranks.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    predictors: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @property
    def cost(self) -> int:
        """Tokens that the model computes, for balancing."""
        return len(self.token_ids)


def pack_group(
    rollouts: Sequence[TrainingRollout], *, max_row_tokens: int, length_norm: str, packed: bool = True
) -> list[PackedRow]:
    """Pack the rollouts of one prompt into as few rows as fit.

    Args:
        rollouts: rollouts with one and the same prompt.
        max_row_tokens: longest row; a single rollout that is longer still gets a row of its own.
        length_norm: `sequence` (mean over a rollout's tokens) or `none` (sum).
        packed: False gives each rollout a row of its own, for models that cannot see a block mask.
    """
    prompt = rollouts[0].prompt_token_ids
    rows: list[list[TrainingRollout]] = []
    room = 0
    for rollout in sorted(rollouts, key=lambda r: len(r.completion_token_ids), reverse=True):
        if rollout.prompt_token_ids != prompt:
            raise ValueError("the rollouts of a group must share their prompt")
        length = len(rollout.completion_token_ids)
        if not rows or not packed or length > room:
            rows.append([])
            room = max_row_tokens - len(prompt)
        rows[-1].append(rollout)
        room -= length
    return [_pack_row(prompt, row, length_norm) for row in rows]


def _pack_row(prompt: tuple[int, ...], rollouts: list[TrainingRollout], length_norm: str) -> PackedRow:
    start = len(prompt)
    tokens, positions, segments = list(prompt), list(range(start)), [_NO_SEGMENT] * start
    predictors: list[int] = []
    weights: list[float] = []
    advantages: list[float] = []
    for segment, rollout in enumerate(rollouts, start=1):
        length = len(rollout.completion_token_ids)
        first = len(tokens)
        predictors += [start - 1, *range(first, first + length - 1)]
        tokens += rollout.completion_token_ids
        positions += range(start, start + length)
        segments += [segment] * length
        weights += [rollout.weight / (length if length_norm == "sequence" else 1)] * length
        advantages += [rollout.advantage] * length
    return PackedRow(
        token_ids=torch.tensor(tokens),
        positions=torch.tensor(positions),
        segments=torch.tensor(segments),
        predictors=torch.tensor(predictors),
        targets=torch.tensor(tokens[start:]),
        old_logprobs=torch.tensor([value for r in rollouts for value in r.logprobs], dtype=torch.float32),
        advantages=torch.tensor(advantages, dtype=torch.float32),
        weights=torch.tensor(weights, dtype=torch.float32),
    )


def block_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive attention mask [1, 1, T, T]: causal, and only to the prompt or the own completion."""
    t = torch.arange(len(segments))
    causal = t[None, :] <= t[:, None]
    visible = (segments[None, :] == _NO_SEGMENT) | (segments[None, :] == segments[:, None])
    mask = torch.zeros(len(segments), len(segments), dtype=dtype)
    return mask.masked_fill(~(causal & visible), torch.finfo(dtype).min)[None, None]


def share_rows(rows: Iterable[PackedRow], num_ranks: int) -> list[list[PackedRow]]:
    """Split rows over ranks so that the costs are even: longest first, to the rank that has least.

    Deterministic, so that every rank computes the same split by itself.
    """
    shares: list[list[PackedRow]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for row in sorted(rows, key=lambda row: row.cost, reverse=True):
        rank = load.index(min(load))
        shares[rank].append(row)
        load[rank] += row.cost
    return shares


def can_pack(config: object) -> bool:
    """Whether a block mask and restarted positions are right for a model: full attention in every layer.

    Sliding-window layers would count the distance over the other completions, and recurrent layers would carry
    their state from one completion into the next.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return all(kind == "full_attention" for kind in layer_types)
    return getattr(config, "sliding_window", None) is None and hasattr(config, "num_attention_heads")
