"""AdamW on the masters: clipping over the shards, the learning rate's schedule, steps that are thrown away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from vipray.config import LearnerConfig
from vipray.learner.policy_weights import PolicyWeights
from vipray.learner.schedule import learning_rate_factor


@dataclass(frozen=True)
class StepResult:
    """What became of one optimiser step: the gradient's norm before clipping, and whether the step was taken."""

    grad_norm: float
    learning_rate: float

    @property
    def is_taken(self) -> bool:
        """A gradient that is not finite is thrown away."""
        return math.isfinite(self.grad_norm)


class PolicyOptimizer:
    """Moves the masters of a policy.

    Args:
        config: of the learner.
        weights: whose masters are moved.
        total_steps: optimiser steps of the whole run, for the schedule.
    """

    def __init__(self, config: LearnerConfig, weights: PolicyWeights, total_steps: int) -> None:
        self._config = config
        self._weights = weights
        self._total_steps = total_steps
        self.adamw = torch.optim.AdamW(
            weights.masters.values(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, number: int) -> StepResult:
        """Take the optimiser step number `number` of the run, counted from 0; a collective.

        The schedule goes by that number, so that steps without a signal move it on too.
        """
        config = self._config
        rate = config.learning_rate * learning_rate_factor(
            number,
            kind=config.schedule,
            warmup_steps=config.warmup_steps,
            total_steps=self._total_steps,
            final_factor=config.final_learning_rate_factor,
        )
        self._weights.take_gradients()
        norm: Any = torch.nn.utils.clip_grad_norm_(self._weights.masters.values(), config.max_grad_norm)
        result = StepResult(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm), rate)
        if result.is_taken:
            for group in self.adamw.param_groups:
                group["lr"] = rate
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        return result
