"""Learning rate by optimiser step, as a factor of `learner.learning_rate`."""

from __future__ import annotations

import math

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate_factor(step: int, *, kind: str, warmup_steps: int, total_steps: int, final_factor: float) -> float:
    """Factor in [0, 1] for the optimiser step number `step`, counted from 0.

    It rises linearly over the warm-up, to 1 at its last step, then stays (`constant`) or falls to `final_factor` at the
    last of `total_steps`, in a line or in half a cosine; later steps keep that.

    >>> [learning_rate_factor(t, kind="linear", warmup_steps=2, total_steps=6, final_factor=0.0) for t in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if kind == "constant":
        return 1.0
    first = max(warmup_steps - 1, 0)
    progress = min(1.0, (step - first) / max(total_steps - 1 - first, 1))
    left = 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return final_factor + (1.0 - final_factor) * left
