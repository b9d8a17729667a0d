from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.allocator import AllocatorActor
from vipray.allocation.exact import allocate
from vipray.allocation.policies import POLICIES, allocate_by_policy
from vipray.config import AllocationConfig
from vipray.records import Prediction, Span

P = np.array([0.9, 0.5, 0.2, 0.05])
PREDICTION = Prediction(tuple("abcd"), P, 4 * P * (1 - P) * 0.9, Span(0.0, 1.0))
SIZES: dict[str, Any] = {"prompts_per_batch": 4, "rollout_budget": 32, "lower": 3, "upper": 16}
BOUNDS: dict[str, Any] = {"lower": 3, "upper": 16, "gradient_variance": PREDICTION.gradient_variance}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_allocation_is_of_its_policy_and_the_shadows_of_all_others(policy):
    allocation = AllocatorActor(AllocationConfig(policy=policy, **SIZES)).allocate(3, PREDICTION)
    assert allocation.n.tolist() == allocate_by_policy(policy, P, 32, **BOUNDS).tolist()
    assert set(allocation.shadow) == set(POLICIES) - {policy}
    for other, n in allocation.shadow.items():
        assert n.tolist() == allocate_by_policy(other, P, 32, **BOUNDS).tolist()
    assert allocation.prompt_weight.tolist() == [1.0] * 4


def test_counts_are_optimal_for_the_weights_that_the_loss_gets():
    allocation = AllocatorActor(AllocationConfig(objective="log_success", **SIZES)).allocate(0, PREDICTION)
    slope = 1 / P
    assert allocation.prompt_weight == pytest.approx(slope / slope.mean())
    assert allocation.n.tolist() == allocate(P, 32, prompt_weight=allocation.prompt_weight, **BOUNDS).tolist()
    assert allocation.n.tolist() == allocation.shadow["log_success"].tolist()


def test_the_control_arm_has_equal_counts_and_the_weights_of_the_objective():
    config = AllocationConfig(policy="uniform", objective="pass_at_k", pass_k=4, **SIZES)
    allocation = AllocatorActor(config).allocate(0, PREDICTION)
    slope = (1 - P) ** 3
    assert allocation.n.tolist() == [8, 8, 8, 8]
    assert allocation.prompt_weight == pytest.approx(slope / slope.mean())
