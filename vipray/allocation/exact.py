"""The integer optimum: the allocation of least gradient variance under a hard budget.

    minimise  Σ_q w_q² a_q g(n_q)    subject to  Σ_q n_q = C,  L <= n_q <= U,  n_q integer

(arXiv:2602.01601 section 5.2, there relaxed to real n; here solved over the integers.) The sum is separable and,
from the estimator's smallest lower bound on, each term is discretely convex. So taking, out of all B (U - L) possible
extra rollouts, the C - B L with the largest gains is exactly optimal: within a prompt the gains fall, hence the ones
taken are always its first. Selecting them at once needs no loop over the budget.

Legend: B prompts, C budget, L and U bounds, n counts [B], a gradient variance [B], w prompt weights [B].
"""

from __future__ import annotations

import heapq

import numpy as np

from vipray.allocation.estimators import ESTIMATORS
from vipray.arrays import FloatArray, IntArray


def allocate(
    success_prob: FloatArray,
    budget: int,
    *,
    lower: int,
    upper: int,
    estimator: str = "rloo",
    gradient_variance: FloatArray | None = None,
    prompt_weight: FloatArray | None = None,
) -> IntArray:
    """Split `budget` rollouts over B prompts so that the gradient's variance is least.

    Ties go to the prompt that comes first; rollouts without any gain are spread as evenly as the bounds allow.

    Args:
        success_prob: [B] predicted success probabilities in [0, 1].
        budget: C, total number of rollouts.
        lower: L >= 2 for `rloo`, >= 3 for `dr_grpo`.
        upper: U >= L.
        estimator: `rloo` or `dr_grpo`.
        gradient_variance: [B] `E[4 p (1 - p)]` where the posterior is more than a point; default `4 p (1 - p)`.
        prompt_weight: [B] weights of the prompts' terms in the loss; default 1.

    Returns:
        [B] int64 counts that sum to `budget` exactly.

    Raises:
        ValueError: with the numbers, for probabilities outside [0, 1] or NaN, an infeasible budget, or L too small.

    >>> allocate(np.array([0.5, 0.02, 0.5]), 18, lower=2, upper=16).tolist()
    [8, 3, 7]
    """
    p = np.asarray(success_prob, dtype=np.float64)
    a = 4.0 * p * (1.0 - p) if gradient_variance is None else np.asarray(gradient_variance, dtype=np.float64)
    w = np.ones_like(p) if prompt_weight is None else np.asarray(prompt_weight, dtype=np.float64)
    _check_vectors(p, a, w)
    check_budget(len(p), budget, lower, upper)
    g = ESTIMATORS[estimator]
    if lower < g.min_lower:
        raise ValueError(f"lower must be >= {g.min_lower} for {estimator} ({g.why_min_lower}), got {lower}")

    steps = np.arange(lower, upper, dtype=np.int64)
    gains = (w**2 * a)[:, None] * g.gain(steps)[None, :]  # [B, U - L], falling along each row
    extra = budget - lower * len(p)
    n = np.full(len(p), lower, dtype=np.int64)
    if extra == 0:
        return n
    threshold = np.partition(gains, gains.size - extra, axis=None)[gains.size - extra]
    n += (gains > threshold).sum(axis=1)
    tied = (gains == threshold).sum(axis=1)
    return _give_ties(n, tied, budget - int(n.sum()), spread=bool(threshold == 0.0))


def check_budget(num_prompts: int, budget: int, lower: int, upper: int) -> None:
    """Raise `ValueError`, with all four numbers, unless B L <= C <= B U."""
    if not num_prompts * lower <= budget <= num_prompts * upper or lower > upper:
        raise ValueError(
            f"a budget of {budget} does not fit {num_prompts} prompts with bounds {lower} and {upper}: "
            f"it must lie in [{num_prompts * lower}, {num_prompts * upper}]"
        )


def _check_vectors(p: FloatArray, a: FloatArray, w: FloatArray) -> None:
    if p.ndim != 1 or p.shape != a.shape or p.shape != w.shape or not p.size:
        raise ValueError(
            f"expected vectors of one length B >= 1: success_prob {p.shape}, gradient_variance {a.shape}, "
            f"prompt_weight {w.shape}"
        )
    inside = (p >= 0.0) & (p <= 1.0)
    if not inside.all():
        raise ValueError(f"success_prob must lie in [0, 1], got {p[~inside][0]}")
    for name, values in (("gradient_variance", a), ("prompt_weight", w)):
        good = np.isfinite(values) & (values >= 0.0)
        if not good.all():
            raise ValueError(f"{name} must be finite and >= 0, got {values[~good][0]}")


def _give_ties(n: IntArray, tied: IntArray, left: int, *, spread: bool) -> IntArray:
    """Hand `left` rollouts of equal gain to the prompts that have `tied` of them each.

    Prompts with the fewest rollouts come first when `spread` (no gain: stay even), else in order.
    """
    heap = [(int(n[q]) if spread else 0, q) for q in np.flatnonzero(tied)]
    heapq.heapify(heap)
    tied = tied.copy()
    for _ in range(left):
        level, q = heapq.heappop(heap)
        n[q] += 1
        tied[q] -= 1
        if tied[q]:
            heapq.heappush(heap, (level + 1, q))
    return n
