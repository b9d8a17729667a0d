"""The paper's solution, for comparison: the optimum over real counts, rounded (arXiv:2602.01601 section 5.2).

    minimise  Σ_q b_q g(n_q)    subject to  Σ_q n_q = C,  L <= n_q <= U,  n_q real;  b_q = w_q² a_q

At the optimum every count within its bounds has b_q |g'(n_q)| = λ. Counts fall in λ, so bisection finds the λ that
spends the budget. Rounding it (algorithm 2) is not optimal over the integers; `vipray.allocation.exact` is.

Legend: B prompts, C budget, L and U bounds, n counts [B], a gradient variance [B], w prompt weights [B], λ multiplier.
"""

from __future__ import annotations

import heapq

import numpy as np

from vipray.allocation.exact import check_budget
from vipray.allocation.predicted_batch import PredictedBatch, check_bounds, predicted_batch
from vipray.arrays import FloatArray, IntArray

_BISECTIONS = 200  # halve the interval of log λ until it holds no other float
_MAX_LOG = 700.0  # exp of more is infinite
_ALMOST = 1e-9  # a count that the bisection leaves this little below a whole number is that number


def allocate_relaxed(
    success_prob: FloatArray,
    budget: int,
    *,
    lower: int,
    upper: int,
    estimator: str = "rloo",
    gradient_variance: FloatArray | None = None,
    prompt_weight: FloatArray | None = None,
) -> IntArray:
    """Solve the relaxation, round down, and hand out the rest by largest decrease (arXiv:2602.01601 alg. 2).

    Arguments, result and errors are those of `vipray.allocation.exact.allocate`.

    >>> allocate_relaxed(np.array([0.5, 0.02, 0.5]), 18, lower=2, upper=16).tolist()
    [8, 3, 7]
    """
    batch = predicted_batch(
        success_prob, estimator=estimator, gradient_variance=gradient_variance, prompt_weight=prompt_weight
    )
    n = np.floor(relaxed_counts(batch, budget, lower=lower, upper=upper) + _ALMOST).astype(np.int64)
    b = _scale(batch)
    heap = [(-b[q] * batch.estimator.gain(n[q]), int(n[q]), q) for q in range(len(n)) if n[q] < upper]
    heapq.heapify(heap)
    for _ in range(budget - int(n.sum())):
        _, _, q = heapq.heappop(heap)
        n[q] += 1
        if n[q] < upper:
            heapq.heappush(heap, (-b[q] * batch.estimator.gain(n[q]), int(n[q]), q))
    return n


def relaxed_counts(batch: PredictedBatch, budget: int, *, lower: int, upper: int) -> FloatArray:
    """Return the [B] real counts of least variance that sum to `budget`, up to rounding.

    Prompts without any variance share equally what the others have no room for.

    Raises:
        ValueError: for a budget that does not fit the bounds, or bounds that do not fit the estimator.
    """
    check_budget(len(batch), budget, lower, upper)
    check_bounds(batch, lower, upper)
    b = _scale(batch)
    n = np.full(len(b), float(lower))
    counts = _dr_grpo_counts if batch.estimator.name == "dr_grpo" else _rloo_counts

    def bounded(log_ratio: FloatArray) -> FloatArray:
        return np.clip(counts(np.exp(np.minimum(log_ratio, _MAX_LOG))), lower, upper)

    live = b > 0.0
    num_idle = int((~live).sum())
    if budget >= num_idle * lower + (len(b) - num_idle) * upper:
        n[live] = upper
        n[~live] = (budget - n[live].sum()) / max(num_idle, 1)
        return n
    to_spend = budget - num_idle * lower
    log_b = np.log(b[live])
    low, high = log_b.min() - 4 * np.log(upper), log_b.max()  # all at U, all at L
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if bounded(log_b - middle).sum() > to_spend:
            low = middle
        else:
            high = middle
    n[live] = bounded(log_b - high)
    return n


def _scale(batch: PredictedBatch) -> FloatArray:
    """[B] `b = w² a`."""
    return batch.prompt_weight**2 * batch.gradient_variance


def _rloo_counts(ratio: FloatArray) -> FloatArray:
    """[B] n with `1 / (n - 1)² = λ / b`, from `b / λ` (eq. 9)."""
    return 1.0 + np.sqrt(ratio)


def _dr_grpo_counts(ratio: FloatArray) -> FloatArray:
    """[B] n >= 3 with `(n - 2) / n³ = λ / b`, from `b / λ` (eq. 7); 3 where λ exceeds the largest slope, b / 27.

    The largest root of n³ - r n + 2 r = 0 with r = b / λ is `2 √(r / 3) cos(arccos(-√(27 / r)) / 3)`.
    """
    r = np.maximum(ratio, 27.0)
    return 2.0 * np.sqrt(r / 3.0) * np.cos(np.arccos(-np.sqrt(27.0 / r)) / 3.0)
