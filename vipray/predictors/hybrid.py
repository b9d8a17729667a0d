"""The default predictor: what prompts share, what each has shown, and a mixture that learns which to trust.

A prompt's success probability is Beta with

    a = κ m_q + Σ_τ λ^(t-τ) s_τ,     b = κ (1 - m_q) + Σ_τ λ^(t-τ) f_τ

where m_q is what the other prompts say of it (a linear model of success rates on `PromptFeatures`), κ how much that
weighs in rollouts, and λ how fast evidence fades. None of the three is tuned: experts for every combination of
shared model, λ and κ run side by side, and their weights are their evidence, the beta-binomial likelihood of every
group before it was seen (prequential; Dawid 1984). Where features say nothing, the expert without features wins and
prompts are told apart by their own history alone; where the policy drifts fast, short memories win. For prompts that
were never seen, for which everything hangs on the shared model, only first visits count as evidence, and the predicted
variance is recalibrated by what came of earlier first visits. All of it fades.

Legend: Q prompts, B of a batch, M shared models, H half-lives, K strengths κ.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from scipy.special import betaln

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.array_namespace import to_numpy
from vipray.predictors.counts import DiscountedCounts
from vipray.predictors.features import PromptFeatures
from vipray.predictors.linear_posterior import LinearPosterior
from vipray.predictors.moments import beta_moments
from vipray.predictors.prompt_index import PromptIndex, check_embeddings
from vipray.predictors.variance_calibration import VarianceCalibration

_HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 128.0, np.inf)  # steps
_STRENGTHS = (0.3, 1.0, 2.0, 4.0, 8.0, 20.0)  # rollouts that the shared model is worth
_RATE_HALF_LIFE = 32.0  # of the counts whose rates the shared models are fitted to
_EVIDENCE_HALF_LIFE = 64.0  # steps after which an expert's merits weigh half
_SPREAD = 0.05  # variance of success rates around a shared model; rates of large groups are no more exact than this
_OFF = 1e9  # prior precision that switches a block of features off
_MEAN_BOUNDS = (0.01, 0.99)


class Hybrid:
    """Predictor that averages over shared models, memories and strengths by their evidence.

    Args:
        prompt_ids: Q distinct prompts.
        embeddings: [Q, D] finite, one row a prompt.
        tasks: [Q] labels, or None.
        texts: [Q] texts, or None.
        num_inducing: inducing prompts of the kernel features.
        xp: array module of the linear algebra over features.
    """

    def __init__(
        self,
        prompt_ids: Sequence[str],
        embeddings: FloatArray,
        tasks: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        *,
        num_inducing: int = 256,
        xp: ModuleType = np,
    ) -> None:
        self._index = PromptIndex(prompt_ids)
        check_embeddings(prompt_ids, embeddings)
        self._features = PromptFeatures(embeddings, tasks, texts, num_inducing=num_inducing, xp=xp)
        self._linear = LinearPosterior(self._features.num_features, xp)
        self._rate = np.zeros(len(prompt_ids))  # what the linear models were given, and how much it weighed
        self._rate_precision = np.zeros(len(prompt_ids))
        self._counts = DiscountedCounts(len(prompt_ids), _HALF_LIVES)
        self._unseen_variance = VarianceCalibration(_EVIDENCE_HALF_LIFE)
        self._priors = self._shared_priors()
        self._shared: list[Any] | None = None  # weights of the shared models; None: to be solved again
        shape = (2, len(self._priors), len(_HALF_LIVES), len(_STRENGTHS))
        self._log_evidence = np.zeros(shape)  # first axis: from first visits, from later ones

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] under the mixture's posterior."""
        rows = self._index.rows(prompt_ids)
        p, variance = self._mixture(rows, *self._experts(rows, self._features.of(rows)))
        seen = self._is_seen(rows)
        variance[~seen] = self._unseen_variance.apply(variance[~seen])
        return p, variance

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Judge the experts by [B] successes and trials of a step, then learn from them."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        if not rows.size:
            return
        phi = self._features.of(rows)
        a, b = self._experts(rows, phi)
        log_likelihood = betaln(a + wins, b + losses) - betaln(a, b)  # [M, H, K, B]
        seen = self._is_seen(rows)
        _, predicted = self._mixture(rows, a, b)
        self._unseen_variance.observe(predicted[~seen], wins[~seen], losses[~seen])
        self._log_evidence *= 0.5 ** (1.0 / _EVIDENCE_HALF_LIFE)
        self._log_evidence[0] += log_likelihood[..., ~seen].sum(-1)
        self._log_evidence[1] += log_likelihood[..., seen].sum(-1)
        self._counts.add(rows, wins, losses)
        self._fit_rates(rows, phi)

    def state_dict(self) -> dict[str, Any]:
        """Counts, rates, sums, evidence, and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "counts": self._counts.state_dict(),
            "rate": self._rate.copy(),
            "rate_precision": self._rate_precision.copy(),
            "linear": self._linear.state_dict(),
            "log_evidence": self._log_evidence.copy(),
            "unseen_variance": self._unseen_variance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._counts.load_state_dict(state["counts"])
        self._rate, self._rate_precision = np.array(state["rate"]), np.array(state["rate_precision"])
        self._linear.load_state_dict(state["linear"])
        self._shared = None
        self._log_evidence = np.array(state["log_evidence"])
        self._unseen_variance.load_state_dict(state["unseen_variance"])

    def metrics(self) -> dict[str, float]:
        """What the mixture trusts for prompts that were seen: strength, forgetting, and the weight of features."""
        weight = self._weights()[1]
        decay = 0.5 ** (1.0 / np.array(_HALF_LIVES))
        return {
            "strength": float((weight.sum((0, 1)) * np.array(_STRENGTHS)).sum()),
            "decay": float((weight.sum((0, 2)) * decay).sum()),
            "features_weight": float(weight[1:].sum()),
            "features_weight_unseen": float(self._weights()[0, 1:].sum()),
            "unseen_variance_slope": self._unseen_variance.slope,
        }

    def _shared_priors(self) -> list[FloatArray]:
        """Prior precisions of the shared models: the global mean, then blocks of features one after the other."""
        precision = self._features.prior_precision
        priors = [precision(task=_OFF, size=_OFF, kernel=_OFF)]
        if self._features.num_tasks:
            priors.append(precision(task=20.0, size=_OFF, kernel=_OFF))
        if self._features.num_sizes:
            priors.append(precision(task=20.0, size=100.0, kernel=_OFF))
        return priors + [precision(task=20.0, size=100.0, kernel=kernel) for kernel in (200.0, 40.0, 8.0)]

    def _experts(self, rows: IntArray, phi: Any) -> tuple[FloatArray, FloatArray]:
        """Parameters [M, H, K, B] of every expert's Beta, for prompts with features [B, D]."""
        if self._shared is None:
            self._shared = [self._linear.mean(prior) for prior in self._priors]
        means = [0.5 + to_numpy(phi @ weights) for weights in self._shared]
        m = np.clip(np.array(means), *_MEAN_BOUNDS)[:, None, None, :]
        successes, failures = self._counts.of(rows)
        strength = np.array(_STRENGTHS)[None, None, :, None]
        return strength * m + successes[None, :, None, :], strength * (1.0 - m) + failures[None, :, None, :]

    def _mixture(self, rows: IntArray, a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`E[p]` and `E[4 p (1 - p)]` [B] over the experts."""
        p, variance = beta_moments(a, b)
        weight = self._weights()[self._is_seen(rows).astype(np.int64)]  # [B, M, H, K]
        return np.einsum("bmhk,mhkb->b", weight, p), np.einsum("bmhk,mhkb->b", weight, variance)

    def _weights(self) -> FloatArray:
        """Weights [2, M, H, K] of the experts, for prompts never seen and seen; each adds up to 1."""
        simpler_first = -np.log(2.0) * np.arange(len(self._priors))[:, None, None]  # each block has to earn its keep
        total = simpler_first + np.stack([self._log_evidence[0], self._log_evidence.sum(axis=0)])
        weight = np.exp(total - total.max(axis=(1, 2, 3), keepdims=True))
        return weight / weight.sum(axis=(1, 2, 3), keepdims=True)

    def _is_seen(self, rows: IntArray) -> Any:
        return self._rate_precision[rows] > 0

    def _fit_rates(self, rows: IntArray, phi: Any) -> None:
        """Give the linear models the prompts' current rates in the place of the former ones."""
        successes, failures = (counts[_HALF_LIVES.index(_RATE_HALF_LIFE)] for counts in self._counts.of(rows))
        n = successes + failures
        rate = successes / n  # as it is: shrinking each rate towards 1/2 would shift the mean of tasks near 0 and 1
        smooth = (successes + 0.5) / (n + 1.0)
        precision = 1.0 / (smooth * (1.0 - smooth) / (n + 1.0) + _SPREAD)
        old = (self._rate[rows], self._rate_precision[rows])
        self._linear.replace(phi, old, (rate - 0.5, precision))
        self._shared = None
        self._rate[rows], self._rate_precision[rows] = rate - 0.5, precision
