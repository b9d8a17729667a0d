"""Disturb a training on purpose, and compare it with one that was not: `vipray chaos CONFIG [key=value …]`.

Runs the configuration twice on a Ray cluster of several nodes in processes of its own on this machine: undisturbed,
then with what `--kinds` names killed at random moments (SIGKILL). Prints how fast the losses were noticed and made
good, whether a rollout was lost or counted twice, and how the batches differ from those of the undisturbed run; with
scripted engines and learner and `pipeline.max_staleness=0` they must be the same. Exit status 1 if anything was lost,
counted twice or different, or if the disturbed run did not come to its end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from actors.fault_injection import CHAOS_OBJECTS
from jobs.chaos.disturbance import Disturbance
from jobs.chaos.driver import Driver
from jobs.chaos.local_cluster import LocalCluster
from jobs.chaos.run_folder import parameters_difference, trained_on, training_s
from jobs.chaos.schedule import KILLED, Schedule
from jobs.chaos.table import kinds_table, run_table
from jobs.command import EXIT_TERMINATED, exit_status
from jobs.plan import requested_cpus
from vipray.config import Config, load_config
from vipray.errors import ConfigError, VipRayError
from vipray.evaluation.chaos_report import KINDS, ChaosReport, Kill, report
from vipray.learner.model_folder import check_model_source
from vipray.report.recoveries import load_recoveries

_KILLS = 100
_TIME_FOR_KILLS = 0.8  # of the undisturbed run's steps; kills make a run longer, so that all of them find their time
_SHARE_OF_OBJECTS = 0.25  # objects that are freed, for each kill
_LOOK_S = 0.2
_PLAIN_WIDTH = 140  # of the tables in a pipe or a file


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.chaos") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="YAML file, e.g. conf/chaos.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when (default 0)")
    parser.add_argument(
        "--kills", type=int, help=f"default {_KILLS}, or as many as find their time; given: fewer are a failure"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"what is killed, of {','.join(KINDS)} (default: all)")
    parser.add_argument("--nodes", type=int, default=3, help="of the cluster, beside its head (default 3)")
    parser.add_argument("--json", type=Path, help="write all figures and kills to this file")
    return exit_status(command, parser.parse_intermixed_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the input, run twice, compare, and print what came of it."""
    config = load_config(args.config, args.overrides)
    kinds = _check(args, config)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    name = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    calm = load_config(args.config, [*args.overrides, f"run.name={name}/undisturbed"])
    disturbed = load_config(args.config, [*args.overrides, f"run.name={name}/disturbed"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that contexts are left, and nodes ended
    console.print(f"starting a head and {args.nodes} nodes", style="dim")
    with LocalCluster(args.nodes, _cpus_per_node(config, args.nodes), config.ray.object_store_mib) as cluster:
        console.print(f"training undisturbed: {calm.output_dir}", style="dim")
        _train(args, calm, cluster)
        interval_s = _TIME_FOR_KILLS * training_s(calm.output_dir) / (args.kills or _KILLS)
        console.print(f"training with a kill every {interval_s:.1f} s: {disturbed.output_dir}", style="dim")
        kills, status = _train_disturbed(args, disturbed, kinds, interval_s, cluster, console)
    found = _report(calm, disturbed, kills, is_complete=status == 0)
    problems = found.problems()
    if args.kills is not None and len(kills) < args.kills:
        problems.append(f"the run ended after {len(kills)} of {args.kills} kills: set run.steps higher")
    console.print(kinds_table(found))
    console.print(run_table(found))
    for problem in problems:
        console.print(f"problem: {problem}")
    if args.json is not None:
        args.json.write_text(json.dumps(_as_json(found, kills, problems), indent=1) + "\n")
    return 1 if problems else 0


def _check(args: argparse.Namespace, config: Config) -> list[str]:
    """Check the options; return the kinds to kill."""
    kinds = list(dict.fromkeys(args.kinds.split(",")))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kinds: {kind!r} is not one of {', '.join(KINDS)}")
    if args.kills is not None and args.kills < 1:
        raise ConfigError(f"--kills must be >= 1, got {args.kills}")
    if args.seed < 0:
        raise ConfigError(f"--seed must be >= 0, got {args.seed}")
    least = 2 if "node" in kinds else 1
    if args.nodes < least:
        raise ConfigError(f"--nodes must be >= {least} for --kinds {args.kinds}, got {args.nodes}")
    if "driver" in kinds and not config.checkpoints.every_steps:
        raise ConfigError(
            "checkpoints.every_steps=0 leaves a killed driver nothing to go on from: set it, or leave `driver` out of "
            "--kinds"
        )
    if config.checkpoints.folder:
        raise ConfigError(
            f"checkpoints.folder={config.checkpoints.folder} would hold the checkpoints of two runs: leave it empty"
        )
    if args.json is not None and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ConfigError(f"--json must name a file in a folder that exists, got {args.json}")
    check_model_source(config.model.path)
    return kinds


def _cpus_per_node(config: Config, num_nodes: int) -> int:
    """As many as let all actors find room while one node is missing."""
    return math.ceil(requested_cpus(config) / max(1, num_nodes - 1))


def _driver(args: argparse.Namespace, config: Config, environment: dict[str, str]) -> Driver:
    folder = config.output_dir
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = [str(args.config), *args.overrides, f"run.name={config.run.name}"]
    return Driver(arguments, environment, folder, config.checkpoint_dir, folder.parent / f"{folder.name}.log")


def _train(args: argparse.Namespace, config: Config, cluster: LocalCluster) -> None:
    with _driver(args, config, cluster.environment) as driver:
        while driver.status is None:
            time.sleep(_LOOK_S)
        if driver.status:
            raise VipRayError(f"the undisturbed run ended with status {driver.status}: {driver.last_words()}")


def _train_disturbed(
    args: argparse.Namespace,
    config: Config,
    kinds: Sequence[str],
    interval_s: float,
    cluster: LocalCluster,
    console: Console,
) -> tuple[list[Kill], int]:
    """Train while things are killed; return the kills and the training's exit status."""
    environment = cluster.environment
    if "object" in kinds:
        environment[CHAOS_OBJECTS] = f"{interval_s / _SHARE_OF_OBJECTS:.3f}"
    with _driver(args, config, environment) as driver:
        disturbance = Disturbance(
            cluster,
            driver,
            [kind for kind in kinds if kind in KILLED],
            args.kills or _KILLS,
            config.generators.count,
            Schedule(args.seed, interval_s),
            lambda text: console.print(text, style="dim"),
        )
        status = disturbance.run()
        if status:
            console.print(f"the disturbed run ended with status {status}: {driver.last_words()}")
    return disturbance.kills, status


def _report(calm: Config, disturbed: Config, kills: Sequence[Kill], *, is_complete: bool) -> ChaosReport:
    found = load_recoveries(disturbed.output_dir)
    objects = [Kill(entry.kind, entry.lost_at_s) for entry in found if entry.kind == "object"]  # the driver's own doing
    engines = {calm.generators.engine, calm.learner.engine}
    return report(
        [*kills, *objects],
        found,
        trained_on(calm.output_dir),
        trained_on(disturbed.output_dir),
        parameters=parameters_difference(calm, disturbed),
        is_complete=is_complete,
        is_comparable=engines == {"scripted"} and calm.pipeline.max_staleness == 0,
    )


def _as_json(found: ChaosReport, kills: Sequence[Kill], problems: Sequence[str]) -> dict[str, Any]:
    return {
        **dataclasses.asdict(found),
        "problems": list(problems),
        "kills": [dataclasses.asdict(kill) for kill in kills],
    }
