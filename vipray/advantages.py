"""Advantages of rollouts within the group of their prompt, for groups of any sizes.

    RLOO      A_k = r_k - mean of the other rewards of the group = n / (n - 1) (r_k - r̄)
    Dr. GRPO  A_k = r_k - r̄
    GRPO      A_k = (r_k - r̄) / standard deviation of the group's n rewards

(arXiv:2402.14740 eq. 7; arXiv:2503.20783 section 3.2; arXiv:2402.03300 section 4.1.2.) Groups are formed by prompt id,
never by position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vipray.arrays import FloatArray

ADVANTAGES = ("rloo", "dr_grpo", "grpo")
_EQUAL = 1e-9  # rewards closer than this are equal: 0.1 + 0.2 is no better than 0.3


def advantages(prompt_ids: Sequence[str], rewards: FloatArray, estimator: str) -> FloatArray:
    """Return the [N] advantages of N rollouts.

    A group of one, or of equal rewards, has advantages of exactly zero.

    Args:
        prompt_ids: [N] prompt of each rollout.
        rewards: [N] finite rewards.
        estimator: `rloo`, `dr_grpo` or `grpo`.

    Raises:
        ValueError: a reward is missing (NaN) or infinite, or the estimator is unknown.

    >>> advantages(["a", "b", "a", "a"], np.array([1.0, 1.0, 0.0, 0.0]), "rloo").tolist()
    [1.0, 0.0, -0.5, -0.5]
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if len(prompt_ids) != len(rewards):
        raise ValueError(f"{len(prompt_ids)} prompt ids for {len(rewards)} rewards")
    if not np.isfinite(rewards).all():
        row = int(np.argmax(~np.isfinite(rewards)))
        raise ValueError(f"the reward of rollout {row} (prompt {prompt_ids[row]!r}) is {rewards[row]}: not verified?")
    if estimator not in ADVANTAGES:
        raise ValueError(f"estimator must be one of {', '.join(ADVANTAGES)}, got {estimator!r}")
    _, group, size = np.unique(np.asarray(prompt_ids), return_inverse=True, return_counts=True)
    n = size[group]
    total = np.bincount(group, weights=rewards)[group]
    baseline = (total - rewards) / np.maximum(n - 1, 1) if estimator == "rloo" else total / n
    values = rewards - baseline
    is_silent = _spread(group, rewards, len(size))[group] <= _EQUAL
    if estimator == "grpo":
        deviation = np.sqrt(np.bincount(group, weights=values**2) / size)[group]
        values = values / np.where(is_silent, 1.0, deviation)
    return np.where(is_silent, 0.0, values)


def _spread(group: np.ndarray, rewards: FloatArray, num_groups: int) -> FloatArray:
    """Largest less smallest reward of each group."""
    low, high = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(low, group, rewards)
    np.maximum.at(high, group, rewards)
    return high - low
