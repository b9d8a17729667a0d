"""Train a model: `vipray train CONFIG [key=value …]`, or `ray job submit -- python -m jobs.train CONFIG …`.

Without a cluster (no `RAY_ADDRESS` in the environment) the job starts a Ray of its own on this machine and ends it
with the run. Everything that can be wrong with the input is checked before Ray or a model starts.

With `--resume auto` the run goes on from its newest complete checkpoint, or begins where there is none: one command for
the first start and for all that follow. SIGTERM and Ctrl-C end a run that writes checkpoints with one; a second signal
ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from actors.fault_injection import ObjectLoser, mean_interval_s
from jobs.command import EXIT_INTERRUPTED, EXIT_TERMINATED, exit_status
from jobs.plan import embedded_cpus, plan_table
from jobs.progress import TrainingObserver
from jobs.prompts import count_prompts, read_prompts
from jobs.start import Start, find_start
from vipray.checkpoints import complete_checkpoints, read_manifest
from vipray.config import Config, load_config, to_yaml
from vipray.config_validation import cautions
from vipray.data.prompts import PromptSet
from vipray.errors import ConfigError, VipRayError, summary_line
from vipray.learner.model_folder import check_model_source
from vipray.report import load_run, summary_table, write_report
from vipray.resume import ACCEPTABLE, facts
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
    parser.add_argument(
        "--resume", metavar="auto|FOLDER", help="go on from the newest complete checkpoint of the run, or from this one"
    )
    parser.add_argument(
        "--accept-changed",
        action="append",
        default=[],
        choices=ACCEPTABLE,
        help="with --resume: go on although this is not as it was; may be given several times",
    )
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
    if args.resume is None and config.checkpoints.every_steps and complete_checkpoints(config.checkpoint_dir):
        raise ConfigError(
            f"checkpoints.folder={config.checkpoint_dir} holds checkpoints of another run: go on with that by "
            "--resume auto, or set it to a new folder"
        )
    if args.accept_changed and args.resume is None:
        raise ConfigError("--accept-changed is about the checkpoint that is resumed: give --resume auto too")
    start = find_start(args.resume, config, console)
    for caution in cautions(config):
        console.print(f"warning: {caution}")
    if args.dry_run:
        num_prompts = count_prompts(config)
        console.print(to_yaml(config))
        console.print(plan_table(config, num_prompts))
        return 0
    if args.resume is None:
        check_output_dir(config.output_dir)
    if RAY_ADDRESS not in os.environ:
        embedded_cpus(config)  # refuses what could never be placed
    interval_s = mean_interval_s()
    prompts = read_prompts(config, console)
    start = start.checked(config, prompts, args.accept_changed, console)
    if start.is_finished(config):
        console.print(f"all {config.run.steps} steps were taken before: nothing is left to do")
        console.print(f"report: {write_report(config.output_dir).absolute()}")
        return 0
    command_line = shlex.join(["vipray", "train", str(args.config), *args.overrides, "--resume", "auto"])
    return _train(config, prompts, start, interval_s, command_line, console)


def _train(
    config: Config, prompts: PromptSet, start: Start, loss_interval_s: float | None, again: str, console: Console
) -> int:
    if _WORKING_DIR_PACKAGE in str(config.output_dir.absolute()):
        console.print(
            f"warning: output goes to {config.output_dir.absolute()}, which Ray removes with the job's working "
            "directory: set run.output_root to a folder that lasts"
        )
    log = RunLog(config.output_dir, to_yaml(config), prompts.table, start.resume_at)
    observer = TrainingObserver(log, console, config.run.steps, start.step)
    import ray

    try:
        _start_ray(config)
        status = asyncio.run(_run(config, prompts, start, loss_interval_s, observer))
    except (VipRayError, ray.exceptions.RayError, OSError) as error:
        details = log.folder / "error.txt"
        with suppress(OSError):  # such as a full disk, which may be what went wrong
            details.write_text(traceback.format_exc())
        hint = f"; go on with: {again}" if complete_checkpoints(config.checkpoint_dir) else ""
        raise VipRayError(f"{summary_line(error)}; the whole traceback is in {details}{hint}") from error
    finally:
        ray.shutdown()
        if observer.num_steps_done:
            console.print(summary_table(load_run(log.folder)))
            console.print(f"report: {write_report(log.folder).absolute()}")
    if status:
        console.print(f"stopped by a signal after {observer.num_steps_done} steps; what is in {log.folder} is complete")
        if complete_checkpoints(config.checkpoint_dir):
            console.print(f"go on with: {again}")
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


async def _run(
    config: Config, prompts: PromptSet, start: Start, loss_interval_s: float | None, observer: TrainingObserver
) -> int:
    """Spawn, train and end; return 0, or the status of the signal that stopped the run."""
    from actors.controller import Controller
    from actors.run_options import ControllerOptions
    from actors.spawn import Spawner, cancel, discard, end, lost_reference, spawn

    signals = _Signals(config.checkpoints.grace_s)
    spawner = Spawner(config, prompts, config.output_dir, start.step)
    try:
        actors = await spawn(config, spawner, observer.on_stage)
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
            facts=facts(config, prompts.fingerprint),
            base=start.base,
            state=start.state,
            actor_start_timeout_s=config.ray.actor_start_timeout_s,
            last_sign_s=start.last_sign_s,
        )
        spoil = None if loss_interval_s is None else ObjectLoser(loss_interval_s, config.run.seed, lost_reference)
        controller = Controller(
            actors, start.sampler(config, prompts), prompts.task_of, options, observer, discard, cancel, spoil=spoil
        )
        signals.ask_to_stop = controller.stop
        await controller.run()
    except asyncio.CancelledError:
        if not signals.status:
            raise
    finally:
        signals.is_ending = True
        await end(spawner.started)
    return signals.status


class _Signals:
    """What becomes of SIGINT and SIGTERM.

    The first one asks the run to stop by itself, with a checkpoint, and cancels the current task where it writes none,
    or takes longer than `grace_s` seconds; a second one cancels at once. Those that come during the clean-up do not
    disturb it. Made after Ray has started, which installs a handler of its own.
    """

    def __init__(self, grace_s: float) -> None:
        self.status = 0  # exit status of the first signal
        self.is_ending = False
        self.ask_to_stop: Callable[[], bool] | None = None  # returns whether it will
        self._grace_s = grace_s
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGINT, self._stop, EXIT_INTERRUPTED)
        self._loop.add_signal_handler(signal.SIGTERM, self._stop, EXIT_TERMINATED)

    def _stop(self, status: int) -> None:
        is_first, self.status = not self.status, self.status or status
        if is_first and self.ask_to_stop is not None and self.ask_to_stop():
            self._loop.call_later(self._grace_s, self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and not self.is_ending:
            self._task.cancel()


if __name__ == "__main__":
    sys.exit(main())
