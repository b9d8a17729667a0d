"""Features of prompts for linear models: a constant, the task's label, sizes of the text, a kernel on the embedding.

    φ(x) = [1, 1{task}, 1{task} ⊗ sizes, L⁻¹ k(Z, x)],   K(Z, Z) + jitter I = L Lᵀ,   k(x, y) = exp(-|x - y|² / (2 h²))

Within a task, difficulty often shows in plain sizes (how long the text is, how many and how large its numbers are),
which an embedding hardly keeps. The last block spans the functions of a Gaussian process with an RBF kernel that is
restricted to M inducing prompts Z (Nyström; R&W 2006 section 8.1), so that a linear model on it is that process, at a
cost that does not grow with Q². Features are made for a batch when they are needed; only the embeddings are kept.

Legend: Q prompts, T tasks, S sizes, M inducing prompts, h bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.predictors.array_namespace import to_numpy

_JITTER = 1e-6
_MAX_TASKS = 64  # with more of them, sizes are not told apart by task
_NUMBER = re.compile(r"\d+")


class PromptFeatures:
    """Features [B, D] of prompts by row.

    Args:
        embeddings: [Q, D] finite; kept in their own precision, not copied on a CPU.
        tasks: [Q] labels, or None where there are none; a single label gives no features.
        texts: [Q] texts, or None to leave sizes out.
        num_inducing: M at most; distinct prompts, evenly spread over the set.
        xp: array module.
    """

    def __init__(
        self,
        embeddings: FloatArray,
        tasks: Sequence[str] | None,
        texts: Sequence[str] | None,
        *,
        num_inducing: int,
        xp: ModuleType = np,
    ) -> None:
        self._xp: Any = xp
        self._x = xp.asarray(embeddings)
        labels, codes = np.unique(
            np.asarray(tasks if tasks is not None else [""] * len(embeddings)), return_inverse=True
        )
        self.num_tasks = len(labels) if len(labels) > 1 else 0
        self._task = codes
        self._size_groups = codes if len(labels) <= _MAX_TASKS else np.zeros_like(codes)
        self._sizes = np.zeros((len(embeddings), 0)) if texts is None else _sizes(texts, self._size_groups)
        self.num_sizes = self._sizes.shape[1] * (int(self._size_groups.max()) + 1)
        spread = np.unique(np.linspace(0, len(embeddings) - 1, min(num_inducing, len(embeddings))).astype(np.int64))
        self._z = self._rows(spread)
        self._h = _median_distance(to_numpy(self._z))
        factor = xp.linalg.cholesky(self._kernel(self._z) + _JITTER * xp.eye(len(spread)))
        self._inverse_factor = xp.linalg.solve(factor, xp.eye(len(spread)))
        self.num_inducing = len(spread)

    @property
    def num_features(self) -> int:
        """D = 1 + T + T S + M."""
        return 1 + self.num_tasks + self.num_sizes + self.num_inducing

    def prior_precision(self, *, task: float, size: float, kernel: float) -> FloatArray:
        """Prior precisions [D]: next to none for the constant, the given ones for the three blocks."""
        blocks = ((self.num_tasks, task), (self.num_sizes, size), (self.num_inducing, kernel))
        return np.concatenate([[1e-6], *(np.full(length, precision) for length, precision in blocks)])

    def of(self, rows: IntArray) -> Any:
        """Features [B, D] of prompts, in the array module."""
        xp = self._xp
        one_hot = (self._task[rows][:, None] == np.arange(self.num_tasks)[None, :]).astype(np.float64)
        group = self._size_groups[rows][:, None] == np.arange(int(self._size_groups.max()) + 1)[None, :]
        sizes = (group[:, :, None] * self._sizes[rows][:, None, :]).reshape(len(rows), self.num_sizes)
        plain = xp.asarray(np.concatenate([np.ones((len(rows), 1)), one_hot, sizes], axis=1))
        kernel = self._kernel(self._rows(rows)) @ self._inverse_factor.T
        return xp.concatenate((plain, kernel), axis=1)

    def _rows(self, rows: IntArray) -> Any:
        """Embeddings [B, D] in float64: the kernel's factor needs it."""
        return self._xp.asarray(self._x[self._xp.asarray(rows)], dtype=self._xp.float64)

    def _kernel(self, x: Any) -> Any:
        xp = self._xp
        sq = (x**2).sum(axis=1)[:, None] + (self._z**2).sum(axis=1)[None, :] - 2.0 * (x @ self._z.T)
        return xp.exp(xp.maximum(sq, 0.0) / (-2.0 * self._h**2))


def _sizes(texts: Sequence[str], groups: IntArray) -> FloatArray:
    """Logarithms of sizes [Q, S] of texts, standardised within their group.

    Characters, words, how many numbers, and the digits of the longest of them.
    """
    raw = np.empty((len(texts), 4))
    for row, text in enumerate(texts):
        numbers = _NUMBER.findall(text)
        raw[row] = len(text), len(text.split()), len(numbers), max(map(len, numbers), default=0)
    sizes = np.log1p(raw)
    for group in np.unique(groups):
        mine = groups == group
        deviation = sizes[mine].std(axis=0)
        sizes[mine] = (sizes[mine] - sizes[mine].mean(axis=0)) / np.where(deviation > 1e-9, deviation, 1.0)
    return sizes


def _median_distance(x: FloatArray) -> float:
    sq = (x**2).sum(1)
    distance = np.sqrt(np.maximum(sq[:, None] + sq[None, :] - 2.0 * (x @ x.T), 0.0))
    off_diagonal = distance[np.triu_indices(len(x), k=1)]
    median = float(np.median(off_diagonal)) if off_diagonal.size else 0.0
    return median if median > 1e-6 else 1.0  # all prompts the same: any bandwidth says so
