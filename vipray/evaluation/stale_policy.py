"""What staleness does to learning, where everything can be enumerated: a softmax policy over short answers.

    π(a | q) = Π_t softmax(x_q · W_t + b_qt)[a_t]        success of q = π(right answer of q | q)

Each of T positions draws one of A symbols. A step draws rollouts from the policy of `staleness` steps ago, μ, and takes
one gradient step on the package's objective (`vipray/learner/loss.py`), whose gradient at θ = π is

    correction = none      1/B Σ_q 1/n Σ_k 1/T Σ_t ρ_t A_k ∇log π(a_t), 0 where ρ_t = π/μ is clipped
    correction = token     the same with min(ρ_t, cap) in place of ρ_t, and no clip
    correction = sequence  the same with min(Π_t ρ_t, cap)

Runs are paired by their seed: prompts, initial parameters, batches and the uniform numbers behind each symbol are the
same for all arms.

Legend: Q prompts, B prompts of a batch, n rollouts of each, T positions, A symbols, D features, A_k advantages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from vipray.advantages import advantages
from vipray.arrays import FloatArray, IntArray

CORRECTIONS = ("none", "token", "sequence")


@dataclass(frozen=True)
class StaleSettings:
    """What all arms share.

    Attributes:
        num_prompts: Q.
        num_features: D, shared by the prompts.
        num_tokens: T.
        num_symbols: A.
        batch_size: B.
        rollouts: n.
        steps: of training.
        learning_rate: of plain gradient ascent.
        logit_spread: standard deviation of the initial logits.
        clip_low: lower clip is 1 - clip_low.
        clip_high: upper clip is 1 + clip_high.
        correction_cap: largest importance weight.
    """

    num_prompts: int = 32
    num_features: int = 8
    num_tokens: int = 2
    num_symbols: int = 4
    batch_size: int = 8
    rollouts: int = 8
    steps: int = 200
    learning_rate: float = 4.0
    logit_spread: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    correction_cap: float = 2.0


@dataclass(frozen=True)
class StaleArm:
    """How old rollouts are, and how that is corrected."""

    staleness: int
    correction: str


@dataclass
class SoftmaxPolicy:
    """Features [Q, D], shared weights [T, D, A], own logits [Q, T, A] and the right answers [Q, T]."""

    features: FloatArray
    shared: FloatArray
    own: FloatArray
    answers: IntArray

    def probs(self, rows: IntArray) -> FloatArray:
        """[B, T, A] probabilities of each symbol at each position."""
        logits = np.einsum("bd,tda->bta", self.features[rows], self.shared) + self.own[rows]
        unscaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return unscaled / unscaled.sum(axis=-1, keepdims=True)

    def success_prob(self) -> FloatArray:
        """[Q] exact success probabilities."""
        rows = np.arange(len(self.answers))
        return chosen(self.probs(rows)[:, None], self.answers[:, None])[:, 0].prod(axis=-1)

    def copy(self) -> SoftmaxPolicy:
        """The policy as it is now."""
        return SoftmaxPolicy(self.features, self.shared.copy(), self.own.copy(), self.answers)


def initial_policy(settings: StaleSettings, rng: np.random.Generator) -> SoftmaxPolicy:
    """Draw prompts, answers and initial logits."""
    q, d, t, a = settings.num_prompts, settings.num_features, settings.num_tokens, settings.num_symbols
    features = rng.normal(size=(q, d)) / np.sqrt(d)
    own = settings.logit_spread * rng.normal(size=(q, t, a))
    return SoftmaxPolicy(features, np.zeros((t, d, a)), own, rng.integers(a, size=(q, t)))


def chosen(probs: FloatArray, symbols: IntArray) -> FloatArray:
    """[B, n, T] probabilities of `symbols` [B, n, T] under `probs` [B, 1 or n, T, A]."""
    wide = np.broadcast_to(probs, (*symbols.shape, probs.shape[-1]))
    return np.take_along_axis(wide, symbols[..., None], axis=-1)[..., 0]


def token_weights(now: FloatArray, sampling: FloatArray, correction: str, settings: StaleSettings) -> FloatArray:
    """Importance weight [B, n, T] of each token, before clipping.

    Args:
        now: [B, n, T] probabilities under the current policy.
        sampling: [B, n, T] probabilities under the policy that sampled.
        correction: one of `CORRECTIONS`.
        settings: for the cap.
    """
    ratio = now / sampling
    if correction == "none":
        return ratio
    if correction == "sequence":
        ratio = np.broadcast_to(ratio.prod(axis=-1, keepdims=True), ratio.shape)
    return np.minimum(ratio, settings.correction_cap)


def estimate_gradient(
    policy: SoftmaxPolicy, sampler: SoftmaxPolicy, rows: IntArray, symbols: IntArray, correction: str, s: StaleSettings
) -> tuple[FloatArray, FloatArray]:
    """Ascent direction of shared [T, D, A] and own [Q, T, A] parameters.

    Args:
        policy: the current policy.
        sampler: the policy that drew the rollouts.
        rows: [B] distinct prompts.
        symbols: [B, n, T] rollouts.
        correction: one of `CORRECTIONS`.
        s: settings.
    """
    probs = policy.probs(rows)
    now, sampling = chosen(probs[:, None], symbols), chosen(sampler.probs(rows)[:, None], symbols)
    rewards = (symbols == policy.answers[rows][:, None]).all(axis=-1).astype(np.float64)
    b, n, t = symbols.shape
    a = advantages([str(q) for q in np.repeat(np.arange(b), n)], rewards.ravel(), "rloo").reshape(b, n, 1)
    weights = token_weights(now, sampling, correction, s) * a
    if correction == "none":
        ratio = now / sampling
        is_clipped = np.where(a > 0, ratio > 1.0 + s.clip_high, ratio < 1.0 - s.clip_low)
        weights = np.where(is_clipped, 0.0, weights)
    score = np.eye(probs.shape[-1])[symbols] - probs[:, None]  # of the logits, [B, n, T, A]
    by_logit = (weights[..., None] * score).sum(axis=1) / (b * n * t)
    own = np.zeros_like(policy.own)
    own[rows] = by_logit
    return np.einsum("bd,bta->tda", policy.features[rows], by_logit), own


def train(settings: StaleSettings, arm: StaleArm, seed: int) -> FloatArray:
    """Train one arm on one seed; return [steps + 1] mean success of all prompts, before and after each step."""
    prompt_rng, batch_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    policy = initial_policy(settings, prompt_rng)
    versions = deque([policy.copy()], maxlen=arm.staleness + 1)
    success = [float(policy.success_prob().mean())]
    for _ in range(settings.steps):
        rows = batch_rng.permutation(settings.num_prompts)[: settings.batch_size]
        uniforms = batch_rng.random((settings.batch_size, settings.rollouts, settings.num_tokens))
        sampler = versions[0]
        symbols = _draw(sampler.probs(rows), uniforms)
        shared, own = estimate_gradient(policy, sampler, rows, symbols, arm.correction, settings)
        policy.shared += settings.learning_rate * shared
        policy.own += settings.learning_rate * own
        versions.append(policy.copy())
        success.append(float(policy.success_prob().mean()))
    return np.array(success)


def final_success(settings: StaleSettings, arm: StaleArm, num_seeds: int) -> FloatArray:
    """[S] mean success after training, for seeds 0 to S - 1."""
    return np.array([train(settings, arm, seed)[-1] for seed in range(num_seeds)])


def _draw(probs: FloatArray, uniforms: FloatArray) -> IntArray:
    """[B, n, T] symbols from probabilities [B, T, A] and uniform numbers [B, n, T], by inverting the distribution."""
    edges = np.cumsum(probs, axis=-1)[:, None, :, :-1]
    return (uniforms[..., None] >= edges).sum(axis=-1)
