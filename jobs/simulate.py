"""Run a configuration's pipeline in virtual time: `vipray simulate CONFIG [key=value …] [--generators 512 …]`.

Dispatcher, length model, staleness policy, allocation and their settings are those of the configuration; generators,
learner and lengths are simulated (vipray/evaluation/pipeline_simulation.py). A unit of time is the time that an engine
takes for a token of one rollout. Nothing of the configuration's model, data or Ray is touched.

What this can show: makespans, idle time and staleness by number of generators and by how heavy the tail of lengths is.
What it cannot show: an engine that slows down with its batch, and anything about learning (`vipray toy`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.command import exit_status
from vipray.config import Config, load_config
from vipray.dispatch.staleness import StalenessPolicy
from vipray.errors import ConfigError
from vipray.evaluation.pipeline_simulation import learned_lengths, simulate
from vipray.evaluation.simulated_run import PipelineSettings, SimulatedRun
from vipray.evaluation.simulated_workload import Workload, WorkloadSettings
from vipray.report.trace import write_trace

_EPOCH_BATCHES = 4  # of an epoch of simulated prompts
_PLAIN_WIDTH = 120  # of the table in a pipe or a file


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.simulate") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="YAML file, e.g. conf/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parser.add_argument("--generators", type=int, help="default: generators.count")
    parser.add_argument("--longest", type=float, default=20.0, help="length at the cut, in medians (default 20)")
    parser.add_argument("--between", type=float, default=1.1, help="log-spread of lengths over prompts (default 1.1)")
    parser.add_argument("--within", type=float, default=0.3, help="the same within a prompt (default 0.3)")
    parser.add_argument("--epochs", type=int, default=2, help="after which lengths are known (default 2)")
    for name, default, what in (
        ("training", 1.0, "time of training a batch"),
        ("publishing", 0.05, "time until new weights can be taken"),
        ("loading", 0.01, "time in which an engine takes them"),
        ("planning", 0.01, "time of observing, predicting and allocating"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, help=f"{what}, in least times of generating (default {default})"
        )
    parser.add_argument("--lifetime", type=float, help="mean lifetime of a generator, in the same unit; none fails")
    parser.add_argument("--trace", type=Path, help="write the last run as a Chrome/Perfetto trace to this file")
    parser.add_argument("--json", type=Path, help="write the figures of every run to this file")
    return exit_status(command, parser.parse_intermixed_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the input, simulate on-policy and with the configuration's staleness (1 where it is 0), print both."""
    config = load_config(args.config, args.overrides)
    _check(args)
    work = workload_settings(config, args)
    ks = sorted({0, config.pipeline.max_staleness or 1})
    runs = {k: _run(config, args, work, k) for k in ks}
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    console.print(_table(runs, config, args))
    if args.trace is not None:
        write_trace(runs[ks[-1]].spans, args.trace)
    if args.json is not None:
        args.json.write_text(json.dumps([_as_json(k, result) for k, result in runs.items()], indent=1) + "\n")
    return 0


def workload_settings(config: Config, args: argparse.Namespace) -> WorkloadSettings:
    """The configuration's batches and allocation; lengths are cut at its `sampling.max_tokens`."""
    allocation = config.allocation
    return WorkloadSettings(
        num_prompts=_EPOCH_BATCHES * allocation.prompts_per_batch,
        prompts_per_batch=allocation.prompts_per_batch,
        rollout_budget=allocation.rollout_budget,
        lower=allocation.lower,
        upper=allocation.upper,
        policy=allocation.policy,
        estimator=allocation.estimator,
        median_tokens=config.sampling.max_tokens / args.longest,
        longest=args.longest,
        between=args.between,
        within=args.within,
        seed=config.run.seed,
    )


def _run(config: Config, args: argparse.Namespace, work: WorkloadSettings, k: int) -> SimulatedRun:
    num_generators, slots = args.generators or config.generators.count, config.generators.max_num_seqs
    unit = Workload(work).step(0).lower_bound(slots, num_generators)
    bound = config.pipeline.max_tokens_in_flight
    settings = PipelineSettings(
        steps=config.run.steps,
        generators=num_generators,
        slots=slots,
        staleness=StalenessPolicy(k, config.pipeline.on_stale),
        max_tokens_in_flight=math.inf if bound is None else bound,
        training_time=args.training * unit,
        publishing_time=args.publishing * unit,
        loading_time=args.loading * unit,
        planning_time=args.planning * unit,
        mean_lifetime=None if args.lifetime is None else args.lifetime * unit,
        replacement_time=unit,
        seed=config.run.seed,
    )
    return simulate(settings, Workload(work), learned_lengths(work, args.epochs))


def _check(args: argparse.Namespace) -> None:
    at_least: dict[str, float] = {"generators": 1, "longest": 1, "between": 0, "within": 0, "epochs": 0}
    at_least |= dict.fromkeys(("training", "publishing", "loading", "planning"), 0)
    for name, minimum in at_least.items():
        value = getattr(args, name)
        if value is not None and not minimum <= value < math.inf:
            raise ConfigError(f"--{name} must be >= {minimum:g} and finite, got {value:g}")
    if args.lifetime is not None and not 1 <= args.lifetime < math.inf:
        raise ConfigError(f"--lifetime must be >= 1, the time of a step, and finite, got {args.lifetime:g}")
    for name in ("trace", "json"):
        path = getattr(args, name)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"--{name} must name a file in a folder that exists, got {path}")


def _table(runs: dict[int, SimulatedRun], config: Config, args: argparse.Namespace) -> Table:
    num_generators = args.generators or config.generators.count
    title = (
        f"{config.run.steps} steps of {config.allocation.rollout_budget} rollouts over "
        f"{config.allocation.prompts_per_batch} prompts, {num_generators} generators of "
        f"{config.generators.max_num_seqs} slots, in virtual time"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for k in runs:
        table.add_column(f"staleness {k}", justify="right")
    figures = [_figures(result) for result in runs.values()]
    for label in figures[0]:
        table.add_row(label, *(column[label] for column in figures))
    synchronous, *_ = runs.values()
    speed_ups = [synchronous.duration / result.duration for result in runs.values()]
    table.add_row("times as fast as staleness 0", *(f"{value:.2f}" for value in speed_ups))
    return table


def _figures(result: SimulatedRun) -> dict[str, str]:
    makespans = [step.makespan / step.lower_bound for step in result.steps]
    return {
        "time of a step, tokens": f"{result.duration / len(result.steps):,.1f}",
        "makespan over its lower bound, median": f"{sorted(makespans)[len(makespans) // 2]:.3f}",
        "generators busy": f"{result.generator_utilisation:.1%}",
        "learner busy": f"{result.learner_utilisation:.1%}",
        "planning exposed, of the time": f"{result.exposed_planning / result.duration:.2%}",
        "age of trained tokens, mean": f"{sum(step.staleness for step in result.steps) / len(result.steps):.2f}",
        "age of trained tokens, largest": str(max(step.max_staleness for step in result.steps)),
        "rollouts issued again": f"{result.counts['reissued']:,.0f}",
        "tokens made in vain": f"{result.wasted_share:.1%}",
    }


def _as_json(k: int, result: SimulatedRun) -> dict[str, Any]:
    figures = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name not in ("steps", "spans")
    }
    return {"max_staleness": k, **figures, "steps": [dataclasses.asdict(step) for step in result.steps]}


if __name__ == "__main__":
    sys.exit(main())
