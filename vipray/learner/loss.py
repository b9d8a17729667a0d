"""The clipped policy gradient, as a weighted sum over tokens.

    L = - Σ_t w_t min(ρ_t A_t, clip(ρ_t, 1 - low, 1 + high) A_t),     ρ_t = π_θ(t) / π_sampling(t)

(arXiv:1707.06347 eq. 7 with the asymmetric bounds of arXiv:2503.14476.) The weights carry the aggregation: with
w_t = prompt weight / (B n_q |o_k|) the sum over all tokens of all ranks is the mean over the batch's prompts of the
mean over the group's rollouts of the mean over their tokens. It is the only aggregation under which the variance of
prompt q's term is a_q g(n_q), which the allocation minimises; a flat mean would weigh prompts by n_q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vipray.learner.packing import PackedRow

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossTerms:
    """Loss of one row and what is worth logging of it (sums over its tokens)."""

    loss: torch.Tensor
    num_tokens: int
    sum_logprob_difference: float  # of |log π_θ - log π_sampling|
    max_logprob_difference: float
    num_clipped: int


def token_logprobs(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities [M] of `targets` under `logits` [M, V] at a sampling temperature, in float32."""
    scaled = logits.float() / temperature
    return scaled.gather(-1, targets[:, None])[:, 0] - torch.logsumexp(scaled, dim=-1)


def clipped_policy_loss(logprobs: torch.Tensor, row: PackedRow, *, clip_low: float, clip_high: float) -> LossTerms:
    """The loss of one row from the [M] log-probabilities of its completion tokens under the current policy."""
    difference = logprobs - row.old_logprobs
    # Far beyond the clip; without the bound one overflow to infinity would make the whole gradient NaN.
    ratio = torch.exp(difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    clipped = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * row.advantages, clipped * row.advantages)
    loss = -(row.weights * objective).sum()
    gap = difference.detach().abs()
    is_clipped = (clipped * row.advantages < ratio * row.advantages).sum()
    return LossTerms(loss, len(gap), float(gap.sum()), float(gap.max()), int(is_clipped))
