"""A toy policy whose success probabilities are known, to see what an allocation does to learning.

    logit p_q = x_q · θ + c b_q        p_q = sigmoid(logit p_q)

Prompt q shares the skills θ with all others and has a parameter b_q of its own. A rollout is a Bernoulli reward
r ~ p_q; the score of the policy is exact: `(r - p_q) x_q` for θ and `(r - p_q) c` for b_q. A step draws a batch of
prompts, takes a prediction, splits the rollout budget over them, draws rewards, and ascends

    ĝ = 1/B Σ_q w_q 1/n_q Σ_k A_qk (r_qk - p_q) ∂logit p_q,    w_q = f'(p̂_q) with mean 1,

with Adam: the gradient of the objective mean f(p), by prompt mean, with the advantages A of the package and weights
that are fixed before sampling. With exact predictions (above the bound of the weights) E[ĝ] is proportional to the
gradient of the batch's objective, the factor being the mean of f'(p).

Runs are paired by their seed: prompts, initial parameters, the order of prompts and the uniform numbers that decide
each rollout (r = 1 where u < p) are the same for all arms.

Legend: Q prompts, D shared skills, B prompts of a batch, C budget, L and U bounds, n counts, θ, b, c parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vipray.advantages import advantages
from vipray.allocation.exact import check_budget
from vipray.allocation.objectives import prompt_weights
from vipray.allocation.policies import allocate_by_policy
from vipray.arrays import FloatArray, IntArray
from vipray.evaluation.backtest import Forecaster

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8  # Adam, arXiv:1412.6980
ORACLE = "oracle"


@dataclass(frozen=True)
class ToySettings:
    """What all arms share.

    Attributes:
        num_prompts: Q.
        num_skills: D; the first is of use to every prompt, the others help some and hurt others.
        batch_size: B <= Q.
        budget: C rollouts a step.
        lower: L.
        upper: U.
        steps: of training.
        learning_rate: of Adam.
        estimator: `rloo` or `dr_grpo`.
        mean_logit: mean of the initial logits.
        logit_spread: their standard deviation.
        own_scale: c, how fast a prompt learns by itself.
    """

    num_prompts: int = 256
    num_skills: int = 8
    batch_size: int = 16
    budget: int = 128
    lower: int = 3
    upper: int = 32
    steps: int = 200
    learning_rate: float = 0.03
    estimator: str = "rloo"
    mean_logit: float = -1.5
    logit_spread: float = 2.0
    own_scale: float = 0.5


@dataclass(frozen=True)
class Arm:
    """What differs between runs: the objective, the allocation policy and who predicts (`ORACLE`: the true p)."""

    objective: str
    policy: str
    predictor: str


@dataclass
class ToyPolicy:
    """Features [Q, D], shared parameters [D], own parameters [Q], and the scale of the latter."""

    features: FloatArray
    shared: FloatArray
    own: FloatArray
    own_scale: float

    def success_prob(self) -> FloatArray:
        """P [Q] of all prompts."""
        return _sigmoid(self.features @ self.shared + self.own_scale * self.own)


@dataclass(frozen=True)
class Gradient:
    """Ascent direction of shared [D] and own [Q] parameters."""

    shared: FloatArray
    own: FloatArray


def initial_policy(settings: ToySettings, rng: np.random.Generator) -> ToyPolicy:
    """Draw prompts and their initial difficulty."""
    features = rng.normal(size=(settings.num_prompts, settings.num_skills))
    features[:, 0] = 1.0
    logits = rng.normal(settings.mean_logit, settings.logit_spread, settings.num_prompts)
    features /= np.sqrt(settings.num_skills)
    return ToyPolicy(features, np.zeros(settings.num_skills), logits / settings.own_scale, settings.own_scale)


def estimate_gradient(
    policy: ToyPolicy, rows: IntArray, n: IntArray, rewards: FloatArray, weight: FloatArray, estimator: str
) -> Gradient:
    """The gradient estimate ĝ of a step.

    Args:
        policy: the policy that drew the rewards.
        rows: [B] distinct prompts.
        n: [B] rollouts of each.
        rewards: [Σ n] 0 or 1, prompt after prompt.
        weight: [B] weights of the prompts' terms.
        estimator: `rloo` or `dr_grpo`.
    """
    group = np.repeat(np.arange(len(rows)), n)
    a = advantages([str(q) for q in group], rewards, estimator)
    p = policy.success_prob()[rows]
    mean_score = np.bincount(group, weights=a * (rewards - p[group]), minlength=len(rows)) / n
    by_logit = weight * mean_score / len(rows)
    own = np.zeros_like(policy.own)
    own[rows] = policy.own_scale * by_logit
    return Gradient(policy.features[rows].T @ by_logit, own)


def train(
    settings: ToySettings,
    arm: Arm,
    seed: int,
    make_predictor: Callable[[Sequence[str], FloatArray], Forecaster],
) -> FloatArray:
    """Train one arm on one seed.

    Args:
        settings: what all arms share.
        arm: what is special here.
        seed: of everything random; the same for all arms.
        make_predictor: from Q prompt ids and features [Q, D] to a fresh predictor; not called for `ORACLE`.

    Returns:
        [steps + 1] mean success probability of all prompts, before training and after each step.

    Raises:
        ValueError: the budget does not fit the batch and its bounds.
    """
    check_budget(settings.batch_size, settings.budget, settings.lower, settings.upper)
    prompt_rng, order_rng, reward_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    policy = initial_policy(settings, prompt_rng)
    ids = [str(row) for row in range(settings.num_prompts)]
    predictor = None if arm.predictor == ORACLE else make_predictor(ids, policy.features)
    adam = _Adam(settings.learning_rate, settings.num_skills + settings.num_prompts)
    order = np.zeros(0, dtype=np.int64)
    success = [float(policy.success_prob().mean())]
    for _ in range(settings.steps):
        if len(order) < settings.batch_size:  # a new epoch; prompts left over from the last one sit out
            order = order_rng.permutation(settings.num_prompts)
        rows, order = order[: settings.batch_size], order[settings.batch_size :]
        uniforms = reward_rng.random((settings.batch_size, settings.upper))
        p = policy.success_prob()[rows]
        batch_ids = [ids[row] for row in rows]
        p_hat, variance = (p, 4.0 * p * (1.0 - p)) if predictor is None else predictor.predict(batch_ids)
        weight = prompt_weights(arm.objective, p_hat)
        n = _split(settings, arm, p_hat, variance, weight)
        solved = uniforms < p[:, None]
        drawn = np.arange(settings.upper)[None, :] < n[:, None]
        rewards = solved[drawn].astype(np.float64)
        adam.ascend(policy, estimate_gradient(policy, rows, n, rewards, weight, settings.estimator))
        if predictor is not None:
            predictor.observe(batch_ids, (solved & drawn).sum(axis=1), n)
        success.append(float(policy.success_prob().mean()))
    return np.array(success)


def _split(settings: ToySettings, arm: Arm, p_hat: FloatArray, variance: FloatArray, weight: FloatArray) -> IntArray:
    return allocate_by_policy(
        arm.policy,
        p_hat,
        settings.budget,
        lower=settings.lower,
        upper=settings.upper,
        estimator=settings.estimator,
        gradient_variance=variance,
        prompt_weight=weight,
    )


def _sigmoid(logit: FloatArray) -> FloatArray:
    return 0.5 * (1.0 + np.tanh(0.5 * logit))


class _Adam:
    """Adam (arXiv:1412.6980 alg. 1) on shared and own parameters together."""

    def __init__(self, learning_rate: float, size: int) -> None:
        self._learning_rate = learning_rate
        self._first, self._second = np.zeros(size), np.zeros(size)
        self._step = 0

    def ascend(self, policy: ToyPolicy, gradient: Gradient) -> None:
        g = np.concatenate([gradient.shared, gradient.own])
        self._step += 1
        self._first = _BETA_1 * self._first + (1.0 - _BETA_1) * g
        self._second = _BETA_2 * self._second + (1.0 - _BETA_2) * g**2
        first = self._first / (1.0 - _BETA_1**self._step)
        second = self._second / (1.0 - _BETA_2**self._step)
        move = self._learning_rate * first / (np.sqrt(second) + _EPSILON)
        policy.shared += move[: len(policy.shared)]
        policy.own += move[len(policy.shared) :]
