"""The paper's predictor: a Gaussian process over prompt embeddings (arXiv:2602.01601, section 5.1, algorithm 1).

    p_q = sigmoid(g(x_q)),   g ~ GP(m, K),   K(x, y) = exp(-|x - y|² / (2 h²))

After a batch S with observed success rates, clipped to [clip, 1 - clip] and taken to logits ĝ:

    m  <-  m + K(·, S) (K(S, S) + jitter I)⁻¹ (ĝ - m_S),      then  m_S <- ĝ

The second assignment is the paper's: a visited prompt is believed to be what was last seen of it, so `clip` is all
that stands between an unlucky group and certainty. The paper's allocation uses the mean alone, so the gradient
variance returned here is that of a point mass at the predicted probability.

Legend: Q prompts, D embedding dimensions, B prompts in a batch, m latent mean [Q], K kernel, h bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.array_namespace import to_numpy
from vipray.predictors.prompt_index import PromptIndex, check_embeddings

_MEDIAN_SAMPLE = 1024  # prompts whose pairwise distances give the median; more do not move it
_BLOCK_NUMBERS = 2**19  # of K(·, S) in memory at once: 4 MiB stay in the cache, and malloc hands them out again
_MIN_BLOCK_ROWS = 256
_JITTER_GROWTH = 10.0
_JITTER_TRIES = 8


class PaperGP:
    """Predictor of arXiv:2602.01601. Never builds a Q x Q matrix.

    Args:
        prompt_ids: Q distinct prompts.
        embeddings: [Q, D] finite numbers, row q for `prompt_ids[q]`; kept in their own precision, not copied on a CPU.
        clip: observed rates are clipped to [clip, 1 - clip], in (0, 0.5).
        jitter: added to the diagonal of K(S, S); grows where duplicates make it singular.
        prior_success_prob: prediction where nothing is known, in (0, 1).
        bandwidth: h; None takes the median distance between prompts.
        xp: array module, `numpy` or `cupy`.

    Raises:
        ValueError: embeddings that are not finite or not one row a prompt, prompts that are not distinct.
    """

    def __init__(
        self,
        prompt_ids: Sequence[str],
        embeddings: FloatArray,
        *,
        clip: float,
        jitter: float,
        prior_success_prob: float = 0.5,
        bandwidth: float | None = None,
        xp: ModuleType = np,
    ) -> None:
        self._index = PromptIndex(prompt_ids)
        check_embeddings(prompt_ids, embeddings)
        self._xp: Any = xp
        self._x = xp.asarray(embeddings)
        self._clip = clip
        self._jitter = jitter
        self._h = bandwidth if bandwidth is not None else self._median_distance()
        self._mean = xp.full(len(self._index), _logit(prior_success_prob), dtype=xp.float64)
        self._num_updates = 0

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B] = 4 p (1 - p) at the latent mean."""
        g = to_numpy(self._mean[self._xp.asarray(self._index.rows(prompt_ids))])
        p = 0.5 * (1.0 + np.tanh(0.5 * g))  # the sigmoid, without overflow
        return p, 4.0 * p * (1.0 - p)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Update all Q latents from [B] successes and trials (algorithm 1, lines 8 to 11)."""
        rows, wins, losses = self._index.evidence(prompt_ids, successes, trials)
        if not rows.size:
            return
        xp = self._xp
        s = xp.asarray(rows)
        rate = np.clip(wins / (wins + losses), self._clip, 1.0 - self._clip)
        g_hat = xp.asarray(np.log(rate / (1.0 - rate)))
        x_s = self._rows(s)
        weights = self._solve(self._kernel(x_s, x_s), g_hat - self._mean[s])
        num_rows = max(_MIN_BLOCK_ROWS, _BLOCK_NUMBERS // len(rows))
        for start in range(0, len(self._index), num_rows):
            block = slice(start, start + num_rows)
            self._mean[block] += self._kernel(self._rows(block), x_s) @ weights
        self._mean[s] = g_hat
        self._num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Latent mean [Q] and the fingerprint of the prompts that it belongs to."""
        return {
            "fingerprint": self._index.fingerprint,
            "mean": to_numpy(self._mean).copy(),
            "updates": self._num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same prompts and kind. Raises `ValueError` for another."""
        self._index.check_state(state, self.state_dict())
        mean = np.array(state["mean"], dtype=np.float64)  # a copy: updates are made in place
        self._mean = self._xp.asarray(mean)
        self._num_updates = int(state["updates"])

    def metrics(self) -> dict[str, float]:
        """Bandwidth and number of updates."""
        return {"bandwidth": self._h, "updates": float(self._num_updates)}

    def _rows(self, rows: Any) -> Any:
        """Embeddings [N, D] of some prompts in float64, which the difference of squares below needs."""
        return self._xp.asarray(self._x[rows], dtype=self._xp.float64)

    def _kernel(self, x: Any, y: Any) -> Any:
        """K [N, M] between embeddings, from |x - y|² = |x|² + |y|² - 2 x·y, in place."""
        xp = self._xp
        k = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :]
        k -= x @ (2.0 * y).T
        k = xp.maximum(k, 0.0, k)
        k /= -2.0 * self._h**2
        return xp.exp(k, k)

    def _solve(self, k: Any, rhs: Any) -> Any:
        """Solve (K + jitter I) x = rhs by Cholesky, with more jitter where rounding leaves K indefinite."""
        xp = self._xp
        jitter = self._jitter
        for _ in range(_JITTER_TRIES):
            try:
                factor = xp.linalg.cholesky(k + jitter * xp.eye(len(k)))
            except np.linalg.LinAlgError:
                factor = xp.full_like(k, xp.nan)  # CuPy reports the same failure as NaN
            if bool(xp.isfinite(factor).all()):
                return xp.linalg.solve(factor.T, xp.linalg.solve(factor, rhs))
            jitter *= _JITTER_GROWTH
        raise ValueError(f"the kernel of a batch stays singular with jitter {jitter:g}: are its embeddings finite?")

    def _median_distance(self) -> float:
        """The median heuristic: the median distance between distinct prompts of an even sample."""
        q = len(self._index)
        x = self._rows(self._xp.asarray(np.unique(np.linspace(0, q - 1, min(q, _MEDIAN_SAMPLE)).astype(np.int64))))
        sq_norm = (x**2).sum(axis=1)
        sq = sq_norm[:, None] + sq_norm[None, :] - 2.0 * (x @ x.T)
        distance = np.sqrt(np.maximum(to_numpy(sq), 0.0))
        off_diagonal = distance[np.triu_indices(len(distance), k=1)]
        median = float(np.median(off_diagonal)) if off_diagonal.size else 0.0
        return median if median > 1e-6 else 1.0  # all prompts the same: any bandwidth says so


def _logit(p: float) -> float:
    return float(np.log(p / (1.0 - p)))
