"""A Gaussian process over embeddings that knows that a group is a noisy observation.

    p_q = sigmoid(g(x_q) + u_q),   g ~ GP(m, s² K) on inducing prompts,   u_q ~ N(0, τ²) of the prompt alone
    s_q ~ Binomial(n_q, p_q)

Unlike the paper's update, a group of 8 does not pin its prompt: it enters as a Gaussian observation of the logit whose
variance is that of Beta(s + 1/2, f + 1/2), a Laplace-like approximation of the binomial likelihood, plus τ² for g. The
prompt's own u is then inferred from its residual. The posterior variance is used in `E[4 p (1 - p)]`. Drift is process
noise: what was observed loses information by a constant factor a step.

Legend: Q prompts, D embedding dimensions, B prompts of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.features import PromptFeatures
from vipray.predictors.kalman import logit_observation
from vipray.predictors.linear_posterior import LinearPosterior
from vipray.predictors.moments import logit_normal_moments
from vipray.predictors.prompt_index import PromptIndex, check_embeddings


class NoisyGP:
    """Gaussian process with a binomial observation model, at a cost that does not grow with Q².

    Args:
        prompt_ids: Q distinct prompts.
        embeddings: [Q, D] finite, one row a prompt.
        signal_variance: s², of the shared latent.
        prompt_variance: τ², of what a prompt has for itself.
        half_life: steps after which evidence weighs half.
        num_inducing: inducing prompts.
        xp: array module of the linear algebra over features.
    """

    def __init__(
        self,
        prompt_ids: Sequence[str],
        embeddings: FloatArray,
        *,
        signal_variance: float = 2.0,
        prompt_variance: float = 2.0,
        half_life: float = 16.0,
        num_inducing: int = 256,
        xp: ModuleType = np,
    ) -> None:
        self._index = PromptIndex(prompt_ids)
        check_embeddings(prompt_ids, embeddings)
        self._features = PromptFeatures(embeddings, None, None, num_inducing=num_inducing, xp=xp)
        self._linear = LinearPosterior(self._features.num_features, xp)
        self._prior = self._features.prior_precision(task=1.0, size=1.0, kernel=1.0 / signal_variance)
        self._prior[0] = 0.1  # the mean latent is somewhere within a few logits of 0
        self._prompt_variance = prompt_variance
        self._decay = 0.5 ** (1.0 / half_life)
        self._now = 0
        self._seen_at = np.zeros(len(prompt_ids), dtype=np.int64)
        self._logit = np.zeros(len(prompt_ids))  # what each prompt has shown, as an observation of its logit
        self._precision = np.zeros(len(prompt_ids))
        self._given = np.zeros(len(prompt_ids))  # precision with which it entered the shared model

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] under the posterior."""
        rows = self._index.rows(prompt_ids)
        mean, variance = self._linear.solve(self._prior).predict(self._features.of(rows))
        shared, own = variance + self._prompt_variance, self._precision_now(rows)
        # The prompt's own observation is taken as independent of g, in which it already counts a little.
        total = 1.0 / shared + own
        return logit_normal_moments((mean / shared + own * self._logit[rows]) / total, 1.0 / total)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Let a step pass, then learn from its [B] successes and trials."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        self._now += 1
        self._linear.fade(self._decay)
        if not rows.size:
            return
        observed, noise = logit_observation(wins, losses)
        age = self._now - self._seen_at[rows]
        before = self._precision_now(rows)
        precision = before + 1.0 / noise
        logit = (before * self._logit[rows] + observed / noise) / precision
        given = precision / (1.0 + precision * self._prompt_variance)  # for g, the prompt's own part is noise
        old = (self._logit[rows], self._given[rows] * self._decay**age)
        self._linear.replace(self._features.of(rows), old, (logit, given))
        self._logit[rows], self._precision[rows], self._given[rows] = logit, precision, given
        self._seen_at[rows] = self._now

    def state_dict(self) -> dict[str, Any]:
        """What each prompt has shown, the sums, the time, and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "linear": self._linear.state_dict(),
            "now": self._now,
            "seen_at": self._seen_at.copy(),
            "logit": self._logit.copy(),
            "precision": self._precision.copy(),
            "given": self._given.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._linear.load_state_dict(state["linear"])
        self._now, self._seen_at = int(state["now"]), np.array(state["seen_at"])
        self._logit, self._precision = np.array(state["logit"]), np.array(state["precision"])
        self._given = np.array(state["given"])

    def metrics(self) -> dict[str, float]:
        """Steps observed."""
        return {"updates": float(self._now)}

    def _precision_now(self, rows: IntArray) -> FloatArray:
        return self._precision[rows] * self._decay ** (self._now - self._seen_at[rows])
