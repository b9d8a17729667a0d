"""How the gradient's variance falls with the number of rollouts, for each advantage estimator.

The variance of prompt q's gradient estimate is `a_q g(n_q)` with `a_q = 4 p_q (1 - p_q)` up to a constant that all
prompts share (arXiv:2602.01601, propositions 4.2 and 4.3):

    RLOO      g(n) = 1 / (n - 1)
    Dr. GRPO  g(n) = (n - 1) / n²

One more rollout lowers it by `a_q (g(n) - g(n + 1))`. That gain falls in n from n = 2 for RLOO and from n = 3 for
Dr. GRPO, and only where it falls is giving each rollout to the largest gain exactly optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vipray.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator as the allocator sees it.

    Attributes:
        name: key in `allocation.estimator`.
        variance: `g(n)`, [...] counts to [...] variance factors.
        min_lower: smallest lower bound from which the gain of one more rollout falls.
        why_min_lower: the reason, for error messages.
    """

    name: str
    variance: Callable[[IntArray], FloatArray]
    min_lower: int
    why_min_lower: str

    def gain(self, n: IntArray) -> FloatArray:
        """`g(n) - g(n + 1)`: what the (n + 1)-th rollout takes off the variance factor."""
        return self.variance(n) - self.variance(n + 1)


def _rloo(n: IntArray) -> FloatArray:
    return 1.0 / (n - 1)


def _dr_grpo(n: IntArray) -> FloatArray:
    return (n - 1) / (n * n)


ESTIMATORS = {
    "rloo": Estimator("rloo", _rloo, 2, "leave-one-out needs two rollouts"),
    "dr_grpo": Estimator("dr_grpo", _dr_grpo, 3, "its gain is not decreasing below 3"),
}
