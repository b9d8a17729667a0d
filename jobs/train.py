"""Train a model: `vipray train CONFIG [key=value …]`, or `ray job submit -- python -m jobs.train CONFIG …`.

Without a cluster (no `RAY_ADDRESS` in the environment) the job starts a Ray of its own on this machine and ends it
with the run. Everything that can be wrong with the input is checked before Ray or a model starts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs.command import EXIT_INTERRUPTED, EXIT_TERMINATED, exit_status
from jobs.plan import embedded_cpus, plan_table
from jobs.progress import TrainingObserver
from jobs.prompts import count_prompts, read_prompts
from vipray.checkpoints import complete_checkpoints, read_manifest
from vipray.config import Config, load_config, to_yaml
from vipray.config_validation import cautions
from vipray.data.prompts import PromptSet
from vipray.errors import ConfigError, VipRayError, summary_line
from vipray.learner.model_folder import check_model_source
from vipray.report import load_run, summary_table, write_report
from vipray.run_log import RunLog, check_output_dir
from vipray.sources import resolve_source

RAY_ADDRESS = "RAY_ADDRESS"  # names the cluster that a submitted job belongs to
_WORKING_DIR_PACKAGE = "_ray_pkg_"  # part of the path of a job's unpacked working directory


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.train") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="YAML file, e.g. conf/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parser.add_argument("--dry-run", action="store_true", help="print configuration and plan, and start nothing")
    return exit_status(command, parser.parse_intermixed_args(argv))  # options may stand between the overrides


def command(args: argparse.Namespace) -> int:
    """Check the input, then train; return the exit status."""
    console = Console(highlight=False, soft_wrap=True, markup=False)  # texts of the user are not markup
    config = load_config(args.config, args.overrides)
    check_model_source(config.model.path)
    resolve_source("predictor.embedding_model", config.predictor.embedding_model)
    if config.checkpoints.load:
        read_manifest(Path(config.checkpoints.load).expanduser())
    if config.checkpoints.every_steps and complete_checkpoints(config.checkpoint_dir):
        raise ConfigError(
            f"checkpoints.folder={config.checkpoint_dir} holds checkpoints of another run: set it to a new folder"
        )
    for caution in cautions(config):
        console.print(f"warning: {caution}")
    if args.dry_run:
        num_prompts = count_prompts(config)
        console.print(to_yaml(config))
        console.print(plan_table(config, num_prompts))
        return 0
    check_output_dir(config.output_dir)
    if RAY_ADDRESS not in os.environ:
        embedded_cpus(config)  # refuses what could never be placed
    return _train(config, read_prompts(config, console), console)


def _train(config: Config, prompts: PromptSet, console: Console) -> int:
    if _WORKING_DIR_PACKAGE in str(config.output_dir.absolute()):
        console.print(
            f"warning: output goes to {config.output_dir.absolute()}, which Ray removes with the job's working "
            "directory: set run.output_root to a folder that lasts"
        )
    log = RunLog(config.output_dir, to_yaml(config), prompts.table)
    observer = TrainingObserver(log, console, config.run.steps)
    import ray

    try:
        _start_ray(config)
        status = asyncio.run(_run(config, prompts, observer))
    except (VipRayError, ray.exceptions.RayError, OSError) as error:
        details = log.folder / "error.txt"
        details.write_text(traceback.format_exc())
        raise VipRayError(f"{summary_line(error)}; the whole traceback is in {details}") from error
    finally:
        ray.shutdown()
        if observer.num_steps_done:
            console.print(summary_table(load_run(log.folder)))
            console.print(f"report: {write_report(log.folder).absolute()}")
    if status:
        console.print(f"stopped by a signal after {observer.num_steps_done} steps; what is in {log.folder} is complete")
    return status


def _start_ray(config: Config) -> None:
    """Join the cluster that `RAY_ADDRESS` names, as in a submitted job, or start a Ray of this run's own."""
    address = os.environ.get(RAY_ADDRESS, "local")
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.WARNING}
    if address == "local":
        os.environ["RAY_AUTH_MODE"] = "disabled"  # a token would have to reach every client of a private Ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {
            "num_cpus": embedded_cpus(config),
            "object_store_memory": config.ray.object_store_mib << 20,
            "include_dashboard": False,
        }
    import ray

    ray.init(**settings)


async def _run(config: Config, prompts: PromptSet, observer: TrainingObserver) -> int:
    """Spawn, train and end; return 0, or the status of the signal that stopped the run."""
    from actors.controller import Controller, ControllerOptions
    from actors.spawn import cancel, discard, end, spawn
    from vipray.data.sampler import PromptSampler

    signals = _Signals()
    handles: list[Any] = []
    try:
        actors = await spawn(config, prompts, config.output_dir, observer.on_stage)
        handles = actors.started
        options = ControllerOptions(
            steps=config.run.steps,
            max_completion_tokens=config.sampling.max_tokens,
            generators=config.generators,
            verifiers=config.verifiers,
            learner=config.learner,
            pipeline=config.pipeline,
            weights=config.weights,
            supervision=config.supervision,
            checkpoints=config.checkpoints,
            checkpoint_dir=config.checkpoint_dir,
            evaluation=config.evaluation,
        )
        batch_size, seed = config.allocation.prompts_per_batch, config.run.seed
        sampler = PromptSampler(prompts.prompt_ids, batch_size, seed, prompts.fingerprint)
        await Controller(actors, sampler, prompts.task_of, options, observer, discard, cancel).run()
    except asyncio.CancelledError:
        if not signals.status:
            raise
    finally:
        signals.is_ending = True
        await end(handles)
    return signals.status


class _Signals:
    """Lets the first SIGINT or SIGTERM cancel the current task; those that follow do not disturb the clean-up.

    Made after Ray has started, which installs a handler of its own.
    """

    def __init__(self) -> None:
        self.status = 0  # exit status of the first signal
        self.is_ending = False
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop, EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, self._stop, EXIT_TERMINATED)

    def _stop(self, status: int) -> None:
        if self.status:
            return
        self.status = status
        if self._task is not None and not self.is_ending:
            self._task.cancel()


if __name__ == "__main__":
    sys.exit(main())
