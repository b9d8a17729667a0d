"""A budget in tokens: rollouts of different prompts differ in cost.

    maximise  Σ_q Σ_{j <= n_q - L} gain_qj    subject to  Σ_q n_q c_q <= budget,  L <= n_q <= U,  n_q integer

Gains fall within a prompt and its rollouts cost the same, so any set of extra rollouts is worth no more than as many
first ones: the problem is a 0/1 knapsack over single rollouts. Unlike with equal costs, taking the largest gains per
token is not optimal, only within one rollout's gain of it; and no method is known that is both exact and fast for
every input. `vipray.allocation.knapsack_search` is exact wherever its search ends, and says so.

Legend: B prompts, L and U bounds, n counts [B], c token costs [B].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vipray.allocation.knapsack_search import fill_knapsack
from vipray.arrays import FloatArray, IntArray

_GRID_BITS = 40  # costs are whole multiples of budget / 2^40 or finer, so that their sums are exact


@dataclass(frozen=True)
class TokenAllocation:
    """Counts under a token budget.

    Attributes:
        n: [B] int64 rollouts.
        gap: how much more gain an allocation within the budget could have at most; 0.0: `n` is proven optimal.
    """

    n: IntArray
    gap: float


def spend_tokens(gains: FloatArray, token_cost: FloatArray, budget: float, *, lower: int) -> TokenAllocation:
    """Buy the extra rollouts of most total gain that `budget` tokens allow.

    Guaranteed: the bounds hold and Σ n·cost <= budget. The gain is within `gap` of the best possible, and `gap` is
    never more than the gain of a single rollout. It is 0.0 (to one part in 10¹² of the gain) when the search ends
    within its limit on states, which it always does for up to 20 possible extra rollouts, and does in practice for
    thousands. Costs count as rounded up to a grid of budget / 2⁴⁰ (whole numbers are on it), so an allocation that
    meets the budget more narrowly than that may be passed over.

    Args:
        gains: [B, U - L] worth of rollouts L + 1, …, U of each prompt, >= 0 and falling along each row.
        token_cost: [B] expected tokens of one rollout, > 0.
        budget: tokens for all rollouts, the first L of each prompt included.
        lower: L.

    Raises:
        ValueError: for costs that are not finite and > 0, or a budget below that of L rollouts each.
    """
    cost = np.asarray(token_cost, dtype=np.float64)
    if cost.shape != gains.shape[:1]:
        raise ValueError(f"token_cost must have one value for each of {len(gains)} prompts, got shape {cost.shape}")
    good = np.isfinite(cost) & (cost > 0.0)
    if not good.all():
        raise ValueError(f"token_cost must be finite and > 0, got {cost[~good][0]}")
    if not lower * cost.sum() <= budget < math.inf:
        raise ValueError(
            f"a budget of {budget} tokens does not fit {len(gains)} prompts with {lower} rollouts each: "
            f"they cost {lower * cost.sum():g}"
        )
    unit = 2.0 ** (math.ceil(math.log2(budget)) - _GRID_BITS)
    whole_cost = np.ceil(cost / unit).astype(np.int64)
    capacity = max(0, int(budget / unit) - lower * int(whole_cost.sum()))
    prompt, column = np.nonzero(gains > 0.0)
    taken, gap = fill_knapsack(gains[prompt, column], whole_cost[prompt], capacity)
    return TokenAllocation(lower + np.bincount(prompt[taken], minlength=len(gains)), gap)
