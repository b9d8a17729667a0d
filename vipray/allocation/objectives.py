"""What training maximises, J = mean over prompts of f(p), and the weights that it gives the prompts.

    mean_success    f = p                  f' = 1
    log_success     f = log p              f' = 1 / p
    sqrt_success    f = 2 √p               f' = 1 / √p
    pass_at_k       f = 1 - (1 - p)^k      f' = k (1 - p)^(k - 1)

∇J = mean of f'(p) ∇p, so the loss weighs the terms of prompt q by f'(p̂), and the allocation that goes with it
minimises Σ f'(p̂)² a g(n). The weights come from the prediction and are fixed before any rollout is sampled: whatever
they are, the gradient is unbiased for the objective with these weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vipray.arrays import FloatArray

MIN_SUCCESS_PROB = 0.05  # log and root grow without bound towards 0, where the prediction is least certain


def _slope_of_mean(p: FloatArray, k: int) -> FloatArray:
    return np.ones_like(p)


def _slope_of_log(p: FloatArray, k: int) -> FloatArray:
    return 1.0 / np.maximum(p, MIN_SUCCESS_PROB)


def _slope_of_sqrt(p: FloatArray, k: int) -> FloatArray:
    return 1.0 / np.sqrt(np.maximum(p, MIN_SUCCESS_PROB))


def _slope_of_pass_at_k(p: FloatArray, k: int) -> FloatArray:
    return k * (1.0 - p) ** (k - 1)


OBJECTIVES: dict[str, Callable[[FloatArray, int], FloatArray]] = {
    "mean_success": _slope_of_mean,
    "log_success": _slope_of_log,
    "sqrt_success": _slope_of_sqrt,
    "pass_at_k": _slope_of_pass_at_k,
}


def prompt_weights(objective: str, success_prob: FloatArray, k: int = 1) -> FloatArray:
    """Return the [B] weights `f'(p)` of the prompts' terms in the loss, with mean 1 over the batch.

    Where all of them are zero (`pass_at_k` of prompts that are always solved) the weights are 1.

    Args:
        objective: a key of `OBJECTIVES`.
        success_prob: [B] predicted success probabilities in [0, 1].
        k: attempts, >= 1; only `pass_at_k` uses it.

    Raises:
        ValueError: for an unknown objective, k < 1, or probabilities outside [0, 1] or NaN.

    >>> prompt_weights("log_success", np.array([0.5, 0.25, 0.0])).round(4).tolist()
    [0.2308, 0.4615, 2.3077]
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    p = np.asarray(success_prob, dtype=np.float64)
    inside = (p >= 0.0) & (p <= 1.0)
    if not inside.all():
        raise ValueError(f"success_prob must lie in [0, 1], got {p[~inside][0]}")
    slope = OBJECTIVES[objective](p, k)
    largest = slope.max()
    if largest == 0.0:
        return np.ones_like(p)
    slope /= largest  # their mean is then no smaller than 1 / B, however small the slopes
    return slope / slope.mean()
