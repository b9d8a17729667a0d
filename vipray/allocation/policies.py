"""From a prediction to an allocation, by the configured policy."""

from __future__ import annotations

from vipray.allocation.exact import allocate
from vipray.allocation.uniform import allocate_uniform
from vipray.arrays import FloatArray, IntArray
from vipray.config import AllocationConfig


def allocate_by_policy(config: AllocationConfig, success_prob: FloatArray, gradient_variance: FloatArray) -> IntArray:
    """Return [B] counts that sum to `rollout_budget`, for B predicted prompts."""
    if config.policy == "uniform":
        return allocate_uniform(len(success_prob), config.rollout_budget, lower=config.lower, upper=config.upper)
    return allocate(
        success_prob,
        config.rollout_budget,
        lower=config.lower,
        upper=config.upper,
        estimator=config.estimator,
        gradient_variance=gradient_variance,
    )
