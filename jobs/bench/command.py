"""Time the parts beside what one would otherwise use, on this machine: `vipray bench [NAME …]`.

Prints medians, their ratios and whether the targets are met. Nothing fails when one is missed: times depend on the
machine and on what else it does; the ratios, measured in the same run, depend on it less.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from jobs.bench import allocation, learner, pipeline, precision, predictor, verifiers
from jobs.bench.results import Benchmark
from jobs.command import exit_status
from vipray.errors import ConfigError

_NAMES = ("allocation", "predictor", "verifiers", "pipeline", "learner")
_ON_REQUEST = ("precision",)  # an hour of training runs
_LOOK_S = 0.5
_PLAIN_WIDTH = 170  # of the table in a pipe or a file


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.bench") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(_NAMES)}: by default all of them, learner and pipeline in short; on request, because it is "
        f"an hour of training runs: {', '.join(_ON_REQUEST)}",
    )
    parser.add_argument("--large", action="store_true", help="also a million prompts: a minute, and 3 GB of memory")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with real answers for verifiers; made up where it is missing"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Run the benchmarks one after the other and print each when it is done."""
    for name in args.names:
        if name not in (*_NAMES, *_ON_REQUEST):
            raise ConfigError(f"{name!r} is not one of {', '.join((*_NAMES, *_ON_REQUEST))}")
    sizes = [predictor.NUM_PROMPTS, *([predictor.LARGE_NUM_PROMPTS] if args.large else [])]
    benchmarks: dict[str, Callable[[], Benchmark | precision.PrecisionBenchmark]] = {
        "allocation": allocation.benchmark,
        "predictor": lambda: predictor.benchmark(sizes),
        "verifiers": lambda: verifiers.benchmark(args.data),
        "pipeline": lambda: pipeline.benchmark(pipeline.SIZES if "pipeline" in args.names else pipeline.SIZES[:1]),
        "learner": lambda: learner.benchmark(thorough="learner" in args.names),
        "precision": precision.benchmark,
    }
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    cores, busy = os.cpu_count(), psutil.cpu_percent(interval=_LOOK_S) / 100.0
    console.print(
        f"{cores} cores, at the start {busy:.0%} busy with other work; threads that wait for it take far longer"
    )
    found: dict[str, Any] = {"machine": {"cores": cores, "busy_before": busy}}
    for name in args.names or _NAMES:
        console.print(f"measuring {name}; this may take minutes", style="dim")
        result = benchmarks[name]()
        console.print(result.table())
        for target in result.targets:
            console.print(str(target))
        found[name] = result.as_json()
        if args.json is not None:  # after each one: the next may take minutes, and fail
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0
