"""The objective, as a weighted sum over completion tokens.

    L = Σ_t w_t [ -c_t min(ρ_t A_t, clip(ρ_t, 1 - low, 1 + high) A_t) + β k_t ]

(arXiv:1707.06347 eq. 7 with the asymmetric bounds of arXiv:2503.14476.) The weights carry the aggregation, see
`vipray/learner/batch.py`. With θ the current policy, μ the one that sampled and π the one at the start of the step:

    correction = none      ρ_t = θ(t) / μ(t),  c_t = 1
    correction = token     ρ_t = θ(t) / π(t),  c_t = min(π(t) / μ(t), cap)               (truncated importance sampling)
    correction = sequence  ρ_t = θ(t) / π(t),  c_t = min(Π over the rollout of π / μ, cap)

A rollout is rejected, c_t = 0, where the geometric mean of π / μ over its tokens lies outside of given bounds. With
β > 0, k_t = exp(d) - d - 1 with d = log reference(t) - log θ(t), which is never negative and whose mean under θ is the
divergence from the reference (http://joschu.net/blog/kl-approx.html, k3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vipray.learner.micro_batch import MicroBatch

_MIN_LOGPROB = -1e4  # where a token is impossible, 0 times minus infinity shall be 0
_MAX_LOG_RATIO = 20.0  # far beyond any clip; one overflow to infinity would make the whole gradient NaN


@dataclass(frozen=True)
class Objective:
    """Settings of the loss.

    Attributes:
        clip_low: lower clip is 1 - clip_low.
        clip_high: upper clip is 1 + clip_high.
        correction: `none`, `token` or `sequence`.
        correction_cap: largest importance weight.
        reject_below: smallest geometric mean ratio of a rollout; 0 rejects none.
        reject_above: largest geometric mean ratio of a rollout; None rejects none.
        kl_coefficient: β.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    correction: str = "none"
    correction_cap: float = 2.0
    reject_below: float = 0.0
    reject_above: float | None = None
    kl_coefficient: float = 0.0

    @property
    def rejects(self) -> bool:
        """Whether any rollout can be rejected."""
        return self.reject_below > 0.0 or self.reject_above is not None


@dataclass(frozen=True)
class LossTerms:
    """Loss of one micro-batch, and [M] values of its tokens that are worth logging, without gradient.

    Attributes:
        loss: scalar.
        log_ratio: log θ - log μ.
        mismatch: log π - log μ of rollouts that π's own version sampled from their start: engine against learner.
        is_clipped: the clip changed the token's term.
        is_truncated: the token's importance weight hit the cap.
        is_rejected: the token's rollout was rejected.
        divergence: k_t; zero without a reference.
    """

    loss: torch.Tensor
    log_ratio: torch.Tensor
    mismatch: torch.Tensor
    is_clipped: torch.Tensor
    is_truncated: torch.Tensor
    is_rejected: torch.Tensor
    divergence: torch.Tensor


def token_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [M] of `targets`, and entropies [M] in nats without gradient, both in float32.

    Args:
        logits: [M, V].
        targets: [M] tokens.
        temperature: at which the tokens were sampled.
    """
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    logprobs = torch.log_softmax(scaled, dim=-1)  # the only [M, V] tensor that the backward pass needs
    detached = logprobs.detach()
    entropies = -torch.linalg.vecdot(detached.exp(), detached.clamp(min=_MIN_LOGPROB))
    return logprobs.gather(-1, targets[:, None])[:, 0], entropies


def policy_loss(
    logprobs: torch.Tensor,
    batch: MicroBatch,
    objective: Objective,
    *,
    start_logprobs: torch.Tensor | None = None,
    reference_logprobs: torch.Tensor | None = None,
) -> LossTerms:
    """The loss of one micro-batch.

    Args:
        logprobs: [M] under the current policy.
        batch: tokens, advantages and weights.
        objective: settings.
        start_logprobs: [M] under the policy at the start of the step; None where it is the current one.
        reference_logprobs: [M] under the reference; needed where `kl_coefficient` > 0.
    """
    start = logprobs.detach() if start_logprobs is None else start_logprobs
    off_policy = (start - batch.sampling_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    importance, is_truncated = _importance(off_policy, batch.rollout, objective)
    is_rejected = _rejected(off_policy, batch.rollout, objective)
    anchor = batch.sampling_logprobs if objective.correction == "none" else start
    ratio = torch.exp((logprobs - anchor).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    clipped = torch.clamp(ratio, 1.0 - objective.clip_low, 1.0 + objective.clip_high)
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    terms = -importance * torch.where(is_rejected, 0.0, gain)
    divergence = torch.zeros_like(ratio)
    if objective.kl_coefficient and reference_logprobs is not None:
        difference = (reference_logprobs - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        divergence = torch.exp(difference) - difference - 1.0
        terms = terms + objective.kl_coefficient * divergence
    return LossTerms(
        loss=(batch.weights * terms).sum(),
        log_ratio=(logprobs - batch.sampling_logprobs).detach(),
        mismatch=(start - batch.sampling_logprobs)[batch.is_current],
        is_clipped=(clipped * batch.advantages < ratio * batch.advantages).detach(),
        is_truncated=is_truncated,
        is_rejected=is_rejected,
        divergence=divergence.detach(),
    )


def _importance(
    off_policy: torch.Tensor, rollout: torch.Tensor, objective: Objective
) -> tuple[torch.Tensor, torch.Tensor]:
    """Truncated importance weights [M], and where the cap was hit."""
    if objective.correction == "none":
        return torch.ones_like(off_policy), torch.zeros_like(off_policy, dtype=torch.bool)
    if objective.correction == "sequence":
        off_policy = _sums(off_policy, rollout)[rollout].clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    weights = torch.exp(off_policy)
    return weights.clamp(max=objective.correction_cap), weights > objective.correction_cap


def _rejected(off_policy: torch.Tensor, rollout: torch.Tensor, objective: Objective) -> torch.Tensor:
    """Tokens [M] of rollouts whose geometric mean ratio lies outside of the bounds."""
    if not objective.rejects:
        return torch.zeros_like(off_policy, dtype=torch.bool)
    mean = torch.exp(_sums(off_policy, rollout) / _sums(torch.ones_like(off_policy), rollout))[rollout]
    above = torch.inf if objective.reject_above is None else objective.reject_above
    return (mean < objective.reject_below) | (mean > above)


def _sums(values: torch.Tensor, rollout: torch.Tensor) -> torch.Tensor:
    """Sum of [M] values by rollout."""
    return torch.zeros(int(rollout[-1]) + 1, dtype=values.dtype, device=values.device).index_add(0, rollout, values)
