"""Allocation: the exact integer optimum beside the relaxed problem, by bisection and by scipy's SLSQP.

SLSQP gets the gradient of the objective and of the constraint, which is kind to it, and only the real-valued solution
is timed, without the rounding that would have to follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobs.bench.measure import HOW_LIMITED, in_child, median_time_s, time_s
from jobs.bench.results import Benchmark, Comparison, Target
from vipray.allocation.exact import allocate
from vipray.allocation.relaxed import allocate_relaxed
from vipray.arrays import FloatArray

SIZES = ((512, 4096), (8192, 131_072))  # B, C
SLSQP_SIZES = ((64, 512), (128, 1024), (512, 4096))  # its time grows with B³
LIMITS_S = {(512, 4096): 1e-3, (8192, 131_072): 20e-3}
SLSQP_TIMEOUT_S = 60.0
_PAPER = {(8192, 131_072): "29.956 s (large size)"}
_LOWER, _UPPER = 3, 32
_MEASURE_FOR_S = 1.0


def benchmark(
    sizes: Sequence[tuple[int, int]] = SIZES,
    slsqp_sizes: Sequence[tuple[int, int]] = SLSQP_SIZES,
    *,
    slsqp_timeout_s: float = SLSQP_TIMEOUT_S,
) -> Benchmark:
    """Measure allocation of C rollouts to B prompts, for each size (B, C)."""
    rows, targets = [], []
    for size in sorted({*sizes, *slsqp_sizes}):
        what = f"allocate B={size[0]}, C={size[1]}"
        ours = in_child(measure, cores=1, num_prompts=size[0], budget=size[1])
        if size in sizes:
            alternative = "relaxed, by bisection, rounded"
            rows.append(Comparison(what, ours["exact_s"], alternative, ours["relaxed_s"], paper=_PAPER.get(size, "")))
        if size in slsqp_sizes:
            slsqp = in_child(measure_slsqp, cores=1, timeout_s=slsqp_timeout_s, num_prompts=size[0], budget=size[1])
            theirs, note = None, f"not finished within {slsqp_timeout_s:g} s"
            if slsqp is not None:
                theirs, note = slsqp["slsqp_s"], slsqp["note"]
            rows.append(Comparison(what, ours["exact_s"], "relaxed, by SLSQP", theirs, note=note))
        if size in LIMITS_S:
            targets.append(Target(f"{what}, one core", LIMITS_S[size], ours["exact_s"]))
    title = f"Allocation, RLOO, bounds {_LOWER} to {_UPPER}, on one core ({HOW_LIMITED})"
    return Benchmark(title, tuple(rows), tuple(targets))


def measure(num_prompts: int, budget: int) -> dict[str, float]:
    """Median times of the exact and the relaxed allocation."""
    p = _success_prob(num_prompts)
    return {
        f"{name}_s": _median_s(lambda solve=solve: solve(p, budget, lower=_LOWER, upper=_UPPER))
        for name, solve in (("exact", allocate), ("relaxed", allocate_relaxed))
    }


def measure_slsqp(num_prompts: int, budget: int) -> dict[str, Any]:
    """Time of one SLSQP solution from the uniform allocation."""
    from scipy.optimize import minimize

    p = _success_prob(num_prompts)
    a = 4.0 * p * (1.0 - p)
    ones = np.ones(num_prompts)
    found: list[Any] = []

    def solve() -> None:
        result = minimize(
            lambda n: float((a / (n - 1.0)).sum()),
            np.full(num_prompts, budget / num_prompts),
            jac=lambda n: -a / (n - 1.0) ** 2,
            method="SLSQP",
            bounds=[(_LOWER, _UPPER)] * num_prompts,
            constraints={"type": "eq", "fun": lambda n: n.sum() - budget, "jac": lambda n: ones},
        )
        found.append(result)

    seconds = time_s(solve)
    ending = "" if found[0].success else f", then: {found[0].message}"
    return {"slsqp_s": seconds, "note": f"{found[0].nit} iterations{ending}"}


def _median_s(call: Any) -> float:
    """As many repeats as fit about a second, 5 at least."""
    once = time_s(call)
    return median_time_s(call, int(np.clip(_MEASURE_FOR_S / once, 5, 500)))


def _success_prob(num_prompts: int) -> FloatArray:
    return np.random.default_rng(0).uniform(size=num_prompts)
