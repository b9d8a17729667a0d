"""The allocation policies by name: each a gain for one more rollout, all solved by the same exact selection.

policy              what is largest, or least                      loss weights other than 1
uniform             equal counts                                   allowed: the control arm of any objective
vip                 gradient variance of the weighted loss         used
inverse_accuracy    counts in proportion to 1 / p                  refused
inverse_variance    counts in proportion to 1 / a                  refused
knapsack            value of the groups, arXiv:2509.25849          refused
mixed_group         expected groups with both outcomes             refused
log_success         gradient variance of the mean log success      refused
"""

from __future__ import annotations

from dataclasses import dataclass

from vipray.allocation import gains
from vipray.allocation.exact import GainFunction, allocate_by_gain
from vipray.allocation.predicted_batch import predicted_batch
from vipray.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Policy:
    """An allocation policy.

    Attributes:
        gain: the worth of one more rollout, [B] prompts and [U - L] counts to [B, U - L].
        any_objective: whether it goes with every objective; else its counts ignore the weights that any other
            than `mean_success` gives the loss, and it is refused with them.
    """

    gain: GainFunction
    any_objective: bool = False


POLICIES = {
    "uniform": Policy(gains.uniform, any_objective=True),
    "vip": Policy(gains.vip, any_objective=True),
    "inverse_accuracy": Policy(gains.inverse_accuracy),
    "inverse_variance": Policy(gains.inverse_variance),
    "knapsack": Policy(gains.knapsack),
    "mixed_group": Policy(gains.mixed_group),
    "log_success": Policy(gains.log_success),
}


def allocate_by_policy(
    policy: str,
    success_prob: FloatArray,
    budget: int,
    *,
    lower: int,
    upper: int,
    estimator: str = "rloo",
    gradient_variance: FloatArray | None = None,
    prompt_weight: FloatArray | None = None,
) -> IntArray:
    """Split `budget` rollouts over B prompts by the policy of that name.

    Arguments, result and errors are those of `vipray.allocation.exact.allocate`; only `vip` uses `prompt_weight`.

    >>> import numpy as np
    >>> allocate_by_policy("inverse_accuracy", np.array([0.8, 0.4, 0.2]), 28, lower=2, upper=16).tolist()
    [4, 8, 16]
    """
    batch = predicted_batch(
        success_prob, estimator=estimator, gradient_variance=gradient_variance, prompt_weight=prompt_weight
    )
    return allocate_by_gain(POLICIES[policy].gain, batch, budget, lower=lower, upper=upper)
