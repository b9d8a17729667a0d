"""The allocator actor."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from vipray.allocation.policies import allocate_by_policy
from vipray.config import AllocationConfig
from vipray.records import Allocation, Prediction, Span


class AllocatorActor:
    """Turns predictions into allocations; holds no state."""

    def __init__(self, config: AllocationConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock

    def ready(self) -> None:
        """Return once the actor is up."""

    def allocate(self, step: int, prediction: Prediction) -> Allocation:
        """Split the step's budget over the predicted prompts."""
        start = self._clock()
        n = allocate_by_policy(self._config, prediction.success_prob, prediction.gradient_variance)
        return Allocation(
            step=step,
            prompt_ids=prediction.prompt_ids,
            n=n,
            prompt_weight=np.ones(len(n)),
            success_prob=prediction.success_prob,
            gradient_variance=prediction.gradient_variance,
            span=Span(start, self._clock()),
        )
