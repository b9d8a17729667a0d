"""The pipeline in virtual time: makespans beside static splitting, idle generators, and what staleness gains and costs.

Lengths are heavy-tailed (the longest 20 times the median), n is that of the real allocation, and dispatcher, length
model and staleness policy are those of a run. Nothing here is wall-clock time: the figures are the same on any machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jobs.bench.results import Benchmark, Comparison, Target
from jobs.toy import paired_difference
from vipray.dispatch.staleness import StalenessPolicy
from vipray.evaluation.pipeline_simulation import learned_lengths, simulate
from vipray.evaluation.simulated_run import PipelineSettings, SimulatedRun
from vipray.evaluation.simulated_workload import StepWork, Workload, WorkloadSettings
from vipray.evaluation.stale_policy import StaleArm, StaleSettings, final_success
from vipray.evaluation.static_splitting import contiguous_shares, makespan, whole_groups

SIZES = (64, 512)  # generators
UTILISATION_STEPS = 50
SEEDS = 20
MAX_DIFFERENCE = 0.01  # of mean success, that staleness with correction may cost
_SLOTS = 8
_PROMPTS_PER_GENERATOR, _ROLLOUTS_PER_PROMPT = 8, 16  # of a batch
_EPOCHS_BEFORE = 2  # from which lengths are known
_MEASURED_STEPS = 4
_HARD_TO_FORESEE = 0.6  # standard deviation within a prompt, in logarithms; 0.3 by default
_SPLITS = {"whole groups, fixed at the start": whole_groups, "equal contiguous shares": contiguous_shares}


def benchmark(
    sizes: Sequence[int] = SIZES, *, utilisation_steps: int = UTILISATION_STEPS, num_seeds: int = SEEDS
) -> Benchmark:
    """Simulate steps and runs for each number of generators, and train the enumerable policy."""
    rows: list[Comparison] = []
    targets: list[Target] = []
    for size in sizes:
        found, target = _makespans(size)
        rows += found
        targets += [target, _utilisation(size, utilisation_steps)]
    rows.append(stale_against_synchronous(min(sizes)))
    gain = rows[-1].ratio or math.nan
    name = "steps at staleness 1 against 0, training as long as generating"
    targets.append(Target(name, 1.8, gain, "times", at_least=True))
    learning = learning_differences(num_seeds)
    name = f"final success, staleness 1 with token correction: difference and half interval, {num_seeds} paired seeds"
    targets.append(Target(name, MAX_DIFFERENCE, learning["staleness 1, token"]["at_most"], "share"))
    return Benchmark(
        "Pipeline in virtual time (a unit is a token of one rollout)",
        tuple(rows),
        tuple(targets),
        {
            "longest over median": {size: longest_over_median(_first_step(size)) for size in sizes},
            "final success, difference to on-policy": learning,
        },
    )


def workload_settings(num_generators: int) -> WorkloadSettings:
    """As much work for each generator, whatever their number."""
    batch = _PROMPTS_PER_GENERATOR * num_generators
    return WorkloadSettings(num_prompts=4 * batch, prompts_per_batch=batch, rollout_budget=_ROLLOUTS_PER_PROMPT * batch)


def run(num_generators: int, settings: WorkloadSettings, *, steps: int, k: int, training: float) -> SimulatedRun:
    """Simulate a pipeline of which publishing, taking weights and planning take a hundredth of generation each.

    Args:
        num_generators: of 8 slots.
        settings: the work.
        steps: to train.
        k: staleness.
        training: time of training a batch, as a share of the lower bound of generating the first one.
    """
    unit = Workload(settings).step(0).lower_bound(_SLOTS, num_generators)
    pipeline = PipelineSettings(
        steps=steps,
        generators=num_generators,
        slots=_SLOTS,
        staleness=StalenessPolicy(k),
        training_time=training * unit,
        publishing_time=0.01 * unit,
        loading_time=0.01 * unit,
        planning_time=0.01 * unit,
    )
    return simulate(pipeline, Workload(settings), learned_lengths(settings, _EPOCHS_BEFORE))


def stale_against_synchronous(num_generators: int, steps: int = 20) -> Comparison:
    """Time of a step at staleness 1 beside 0, where training takes as long as generating."""
    settings = workload_settings(num_generators)
    stale, synchronous = (run(num_generators, settings, steps=steps, k=k, training=1.0) for k in (1, 0))
    unit = _first_step(num_generators).lower_bound(_SLOTS, num_generators)
    return Comparison(
        f"mean step, {num_generators} generators, over generation's lower bound: staleness 1",
        stale.duration / steps / unit,
        "staleness 0",
        synchronous.duration / steps / unit,
        unit="times",
    )


def longest_over_median(work: StepWork) -> float:
    """How many times the median the longest rollout of a step has."""
    lengths = np.array(list(work.tokens.values()))
    return float(lengths.max() / np.median(lengths))


def learning_differences(num_seeds: int) -> dict[str, dict[str, float]]:
    """Final success of stale arms less that of on-policy training, paired by seed, with 95 % t intervals."""
    settings = StaleSettings()
    on_policy = final_success(settings, StaleArm(0, "none"), num_seeds)
    found = {"on-policy": {"mean": float(on_policy.mean())}}
    for staleness in (1, 8):
        for correction in ("none", "token", "sequence"):
            values = final_success(settings, StaleArm(staleness, correction), num_seeds)
            difference = paired_difference(values, on_policy)
            found[f"staleness {staleness}, {correction}"] = {
                **dataclasses.asdict(difference),
                "at_most": abs(difference.mean) + difference.half_width,
            }
    return found


def _makespans(num_generators: int) -> tuple[list[Comparison], Target]:
    """Makespans beside each static splitting, also where lengths are hard to foresee, and the target for the former."""
    settings = workload_settings(num_generators)
    hard = dataclasses.replace(settings, within=_HARD_TO_FORESEE, between=_between(settings, _HARD_TO_FORESEE))
    what = f"makespan of a step, {num_generators} generators, over its lower bound"
    ours = _ratios(num_generators, settings)
    rows = [
        *_beside_static(what, num_generators, settings, ours),
        *_beside_static(f"{what}, lengths hard to foresee", num_generators, hard, _ratios(num_generators, hard)),
    ]
    return rows, Target(f"{what}, worst of {_MEASURED_STEPS}", 1.05, max(ours), "times")


def _beside_static(what: str, num_generators: int, settings: WorkloadSettings, ours: list[float]) -> list[Comparison]:
    """Mean of makespan over lower bound, beside that of each static splitting of the same steps."""
    workload = Workload(settings)
    works = [workload.step(step) for step in range(_MEASURED_STEPS)]
    rows = []
    for name, split in _SPLITS.items():
        theirs = [
            makespan(split(work, num_generators), work.tokens, _SLOTS) / work.lower_bound(_SLOTS, num_generators)
            for work in works
        ]
        worst = f"worst {max(ours):.3f}, theirs {max(theirs):.2f}"
        rows.append(Comparison(what, float(np.mean(ours)), name, float(np.mean(theirs)), "times", note=worst))
    return rows


def _ratios(num_generators: int, settings: WorkloadSettings) -> list[float]:
    """Makespan over lower bound of each of some on-policy steps, which have all generators to themselves."""
    steps = run(num_generators, settings, steps=_MEASURED_STEPS, k=0, training=0.0).steps
    return [step.makespan / step.lower_bound for step in steps]


def _utilisation(num_generators: int, steps: int) -> Target:
    """Share of the slots' time in which tokens are made, at staleness 1."""
    result = run(num_generators, workload_settings(num_generators), steps=steps, k=1, training=0.6)
    name = f"utilisation of {num_generators} generators, staleness 1, {steps} steps, training 0.6 of generating"
    return Target(name, 0.95, result.generator_utilisation, "share", at_least=True)


def _first_step(num_generators: int) -> StepWork:
    return Workload(workload_settings(num_generators)).step(0)


def _between(settings: WorkloadSettings, within: float) -> float:
    """The spread over prompts that leaves the spread of all lengths as it is."""
    return math.sqrt(settings.between**2 + settings.within**2 - within**2)
