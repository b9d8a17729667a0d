"""Ridge regression of success rates on embeddings: what the text alone says of a prompt.

Each prompt counts once, with its current rate. A prompt's own history is no feature, so that this baseline predicts
prompts that were seen no better than others; its penalty is given, not fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.linear_posterior import LinearPosterior
from vipray.predictors.prompt_index import PromptIndex, check_embeddings

_MEAN_BOUNDS = (0.01, 0.99)


class Ridge:
    """Baseline on embeddings.

    Args:
        prompt_ids: Q distinct prompts.
        embeddings: [Q, D] finite, one row a prompt.
        penalty: ridge penalty, in units of a rollout's precision.
        xp: array module.
    """

    def __init__(
        self, prompt_ids: Sequence[str], embeddings: FloatArray, *, penalty: float, xp: ModuleType = np
    ) -> None:
        self._index = PromptIndex(prompt_ids)
        check_embeddings(prompt_ids, embeddings)
        self._xp: Any = xp
        self._x = xp.asarray(np.concatenate([np.ones((len(embeddings), 1)), embeddings], axis=1))
        self._linear = LinearPosterior(embeddings.shape[1] + 1, xp)
        self._prior = np.concatenate([[1e-6], np.full(embeddings.shape[1], penalty)])
        self._rate = np.zeros(len(prompt_ids))
        self._precision = np.zeros(len(prompt_ids))

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] of a point mass at it."""
        phi = self._x[self._xp.asarray(self._index.rows(prompt_ids))]
        p = np.clip(0.5 + self._linear.solve(self._prior).predict(phi)[0], *_MEAN_BOUNDS)
        return p, 4.0 * p * (1.0 - p)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Give the model the current rates of the [B] prompts that were tried."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        if not rows.size:
            return
        new = (wins / (wins + losses) - 0.5, wins + losses)
        self._linear.replace(self._x[self._xp.asarray(rows)], (self._rate[rows], self._precision[rows]), new)
        self._rate[rows], self._precision[rows] = new

    def state_dict(self) -> dict[str, Any]:
        """Rates, their weights, the sums, and the fingerprint of the prompts."""
        return {
            "fingerprint": self._index.fingerprint,
            "rate": self._rate.copy(),
            "precision": self._precision.copy(),
            "linear": self._linear.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        self._rate, self._precision = np.array(state["rate"]), np.array(state["precision"])
        self._linear.load_state_dict(state["linear"])

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}
