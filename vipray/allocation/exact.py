"""The integer optimum: the allocation of least gradient variance under a hard budget.

    minimise  Σ_q w_q² a_q g(n_q)    subject to  Σ_q n_q = C,  L <= n_q <= U,  n_q integer

(arXiv:2602.01601 section 5.2, there relaxed to real n; here solved over the integers.) The sum is separable and,
from the estimator's smallest lower bound on, each term is discretely convex. So taking, out of all B (U - L) possible
extra rollouts, the C - B L with the largest gains is exactly optimal: within a prompt the gains fall, hence the ones
taken are always its first. Selecting them at once needs no loop over the budget. The same holds for any other policy
whose gains fall.

Legend: B prompts, C budget, L and U bounds, n counts [B], a gradient variance [B], w prompt weights [B].
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from vipray.allocation.gains import vip
from vipray.allocation.predicted_batch import PredictedBatch, check_bounds, predicted_batch
from vipray.allocation.token_budget import spend_tokens
from vipray.arrays import FloatArray, IntArray

GainFunction = Callable[[PredictedBatch, IntArray], FloatArray]


def allocate(
    success_prob: FloatArray,
    budget: int,
    *,
    lower: int,
    upper: int,
    estimator: str = "rloo",
    gradient_variance: FloatArray | None = None,
    token_cost: FloatArray | None = None,
    prompt_weight: FloatArray | None = None,
) -> IntArray:
    """Split `budget` rollouts over B prompts so that the gradient's variance is least.

    Ties go to the prompt that comes first; rollouts without any gain are spread as evenly as the bounds allow.

    With `token_cost` the budget is in tokens: the variance is least among all allocations with Σ n·cost <= budget,
    as far as `vipray.allocation.token_budget.spend_tokens` proves it, and rollouts without any gain are not bought.

    Args:
        success_prob: [B] predicted success probabilities in [0, 1].
        budget: C, total number of rollouts; of tokens with `token_cost`.
        lower: L >= 2 for `rloo`, >= 3 for `dr_grpo`.
        upper: U >= L.
        estimator: `rloo` or `dr_grpo`.
        gradient_variance: [B] `E[4 p (1 - p)]` where the posterior is more than a point; default `4 p (1 - p)`.
        token_cost: [B] expected tokens of one rollout, > 0; default: the budget counts rollouts.
        prompt_weight: [B] weights of the prompts' terms in the loss; default 1.

    Returns:
        [B] int64 counts that sum to `budget` exactly; that cost at most `budget` with `token_cost`.

    Raises:
        ValueError: with the numbers, for probabilities outside [0, 1] or NaN, an infeasible budget, or L too small.

    >>> allocate(np.array([0.5, 0.02, 0.5]), 18, lower=2, upper=16).tolist()
    [8, 3, 7]
    >>> allocate(np.array([0.5, 0.5]), 1800, lower=2, upper=16, token_cost=np.array([100.0, 300.0])).tolist()
    [6, 4]
    """
    batch = predicted_batch(
        success_prob, estimator=estimator, gradient_variance=gradient_variance, prompt_weight=prompt_weight
    )
    if token_cost is None:
        return allocate_by_gain(vip, batch, budget, lower=lower, upper=upper)
    check_bounds(batch, lower, upper)
    return spend_tokens(vip(batch, np.arange(lower, upper)), token_cost, budget, lower=lower).n


def allocate_by_gain(gain: GainFunction, batch: PredictedBatch, budget: int, *, lower: int, upper: int) -> IntArray:
    """Return the [B] int64 counts, summing to `budget`, for which the sum of all gains is largest.

    Raises:
        ValueError: for a budget that does not fit the bounds, or bounds that do not fit the estimator.
    """
    check_budget(len(batch), budget, lower, upper)
    check_bounds(batch, lower, upper)
    return take_largest_gains(gain(batch, np.arange(lower, upper)), lower, budget - lower * len(batch))


def take_largest_gains(gains: FloatArray, lower: int, extra: int) -> IntArray:
    """Give `extra` rollouts, on top of `lower` for each prompt, to the largest gains.

    Args:
        gains: [B, U - L] worth of rollouts L + 1, …, U of each prompt, falling along each row.
        lower: L.
        extra: rollouts to give, between 0 and B (U - L).

    Returns:
        [B] int64 counts. Ties go to the prompt that comes first, but gains of zero to the one with the fewest.
    """
    n = np.full(len(gains), lower, dtype=np.int64)
    if extra == 0:
        return n
    threshold = np.partition(gains, gains.size - extra, axis=None)[gains.size - extra]
    n += (gains > threshold).sum(axis=1)
    tied = (gains == threshold).sum(axis=1)
    left = extra - int((n - lower).sum())
    return _give_ties(n, tied, left, spread=bool(threshold == 0.0))


def check_budget(num_prompts: int, budget: int, lower: int, upper: int) -> None:
    """Raise `ValueError`, with all four numbers, unless B L <= C <= B U."""
    if not num_prompts * lower <= budget <= num_prompts * upper or lower > upper:
        raise ValueError(
            f"a budget of {budget} does not fit {num_prompts} prompts with bounds {lower} and {upper}: "
            f"it must lie in [{num_prompts * lower}, {num_prompts * upper}]"
        )


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
