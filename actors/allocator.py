"""The allocator actor."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray

from vipray.allocation.objectives import prompt_weights
from vipray.allocation.policies import POLICIES, allocate_by_policy
from vipray.config import AllocationConfig
from vipray.records import Allocation, Prediction, Span


class AllocatorActor:
    """Turns predictions into allocations; holds no state."""

    def __init__(self, config: AllocationConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock

    @ray.method(concurrency_group="health")
    def health(self) -> None:
        """Answer, beside whatever else is under way."""

    def ready(self) -> None:
        """Return once the actor is up."""

    def allocate(self, step: int, prediction: Prediction) -> Allocation:
        """Split the step's budget over the predicted prompts, and say how each other policy would have done so."""
        start = self._clock()
        config = self._config
        weight = prompt_weights(config.objective, prediction.success_prob, config.pass_k)
        counts = {
            policy: allocate_by_policy(
                policy,
                prediction.success_prob,
                config.rollout_budget,
                lower=config.lower,
                upper=config.upper,
                estimator=config.estimator,
                gradient_variance=prediction.gradient_variance,
                prompt_weight=weight,
            )
            for policy in POLICIES
        }
        return Allocation(
            step=step,
            prompt_ids=prediction.prompt_ids,
            n=counts.pop(config.policy),
            prompt_weight=weight,
            success_prob=prediction.success_prob,
            gradient_variance=prediction.gradient_variance,
            span=Span(start, self._clock()),
            shadow=counts,
        )
