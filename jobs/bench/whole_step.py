"""A whole step, generation, verification, training and publishing, beside one of TRL's GRPOTrainer.

First `vipray train` runs as a job of its own, with the demo's engines and uniform allocation. Then TRL, in an
environment of its own, trains the same model on the very prompts of each of these steps, with as many rollouts.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from jobs.bench.environment import CACHE_DIR, InstallationError, ensure_environment
from jobs.bench.results import Comparison, quantity
from vipray.config import Config, load_config
from vipray.errors import VipRayError
from vipray.learner.model_folder import ensure_model_folder

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "conf" / "demo.yaml"
TRL_VERSION = "1.16.0"
_SHARED_VERSIONS = ("torch", "transformers")  # TRL runs on the very builds that we run on
_OTHER_REQUIREMENTS = ("accelerate==1.15.0", "datasets==5.2.0")
_SCRIPT = Path(__file__).with_name("trl_step.py")
PRECISIONS = ("auto", "fp32")  # the default, which is bf16 where the processor multiplies it; and what TRL trains in
_PARTS = ("generation", "training", "publishing", "loading")
_MICRO_BATCH = 16  # rollouts that TRL trains on at once: on 2 cores it took 0.8 of the processor time of 64 at once
_TIMEOUT_S = 1800.0
_ENDING_TIMEOUT_S = 60.0  # to end a run's processes in good order


@dataclass(frozen=True)
class StepSize:
    """What a step is, and how many there are; the first one does not count."""

    prompts: int = 8
    rollouts: int = 8  # of each prompt
    max_tokens: int = 16
    steps: int = 4


class RunError(VipRayError):
    """A job that was to be measured did not end well."""


def compare(
    size: StepSize, *, cores: int, overrides: Sequence[str] = (), cache_dir: str = CACHE_DIR
) -> tuple[list[Comparison], dict[str, Any]]:
    """Measure the median step of both, ours as it trains by default and in fp32, in which TRL trains.

    Where TRL is not to be had, the comparison's note says why.

    Args:
        size: of the step.
        cores: that all processes of either side may use together; also TRL's threads.
        overrides: `key=value` settings of our run, beside those that make the two comparable.
        cache_dir: where TRL's environment is kept.

    Raises:
        RunError: our own run failed.
    """
    with tempfile.TemporaryDirectory(prefix="vipray-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ours = {}
        for precision in PRECISIONS:
            settings = [*settings_of(size, precision), f"run.output_root={folder}", f"run.name={precision}", *overrides]
            command = [sys.executable, "-m", "jobs.train", str(DEMO), *settings]
            run_logged(command, folder / f"{precision}.log", cores=cores)
            ours[precision] = read_steps(folder / precision)
        config = load_config(DEMO, settings)
        try:
            trl = _train_with_trl(trl_task(config, size, folder / PRECISIONS[-1], cores), folder, cache_dir)
            missing = ""
        except (InstallationError, RunError) as error:
            trl, missing = None, str(error)
    rows = [_comparison(size, precision, steps, trl, missing) for precision, steps in ours.items()]
    return rows, {"ours": ours, "trl": trl or {"missing": missing}}


def settings_of(size: StepSize, precision: str) -> list[str]:
    """The settings by which the demo's run becomes comparable: equal n, no evaluation."""
    return [
        f"run.steps={size.steps}",
        f"allocation.prompts_per_batch={size.prompts}",
        f"allocation.rollout_budget={size.prompts * size.rollouts}",
        "allocation.policy=uniform",
        f"sampling.max_tokens={size.max_tokens}",
        f"learner.precision={precision}",
        "evaluation.rollouts_per_prompt=0",
    ]


def read_steps(run: Path) -> list[dict[str, float]]:
    """What a run logged of its steps."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trl_task(config: Config, size: StepSize, run: Path, threads: int) -> dict[str, Any]:
    """The record for `trl_step.py`: the prompts of the run's steps in their order, and its settings.

    Raises:
        RunError: a prompt of the run did not get `size.rollouts` rollouts.
    """
    allocated = sorted(pq.read_table(run / "allocations.parquet").to_pylist(), key=lambda row: int(row["step"]))
    if any(row["n"] != size.rollouts for row in allocated):
        raise RunError(f"not every prompt had {size.rollouts} rollouts")
    prompts = {row["prompt_id"]: row for row in pq.read_table(run / "prompts.parquet").to_pylist()}
    return {
        "model_folder": str(ensure_model_folder(config.model.path, config.model.cache_dir)),
        "prompts": [_chat(prompts[row["prompt_id"]], config.data.system_prompt) for row in allocated],
        "steps": size.steps,
        "prompts_per_step": size.prompts,
        "rollouts_per_prompt": size.rollouts,
        "micro_batch": _micro_batch(size),
        "max_tokens": size.max_tokens,
        "temperature": config.sampling.temperature,
        "learning_rate": config.learner.learning_rate,
        "max_grad_norm": config.learner.max_grad_norm,
        "clip_low": config.learner.clip_low,
        "clip_high": config.learner.clip_high,
        "seed": config.run.seed,
        "threads": threads,
    }


def trl_requirements() -> list[str]:
    """TRL and what it runs on, pinned; torch and transformers as they are installed here."""
    shared = [f"{name}=={version(name)}" for name in _SHARED_VERSIONS]
    return [f"trl=={TRL_VERSION}", *shared, *_OTHER_REQUIREMENTS]


def run_logged(
    command: Sequence[str], log: Path, *, cores: int | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a command to its end, with what it writes in `log`. Whatever stops the wait ends the command in good order.

    Args:
        command: what to run.
        log: file for its output and errors.
        cores: how many of this process's cores it and its children may use; None: all of them.
        env: variables beside those of this process.

    Raises:
        RunError: it failed or did not end in time; with the last line that it wrote.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | dict(env or {})
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, preexec_fn=_limit_to(cores)
        )
        try:
            status = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RunError(f"{Path(log).stem} did not end within {_TIMEOUT_S:g} s") from None
        finally:
            _end(process)
    if status:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise RunError(f"{log.stem} ended with status {status}: {(lines or ['it wrote nothing'])[-1]}")


def _limit_to(cores: int | None) -> Callable[[], None] | None:
    """What a child process calls before it begins; its own children inherit the limit."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        return None
    return partial(os.sched_setaffinity, 0, sorted(os.sched_getaffinity(0))[:cores])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_ENDING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _train_with_trl(task: Mapping[str, Any], folder: Path, cache_dir: str) -> dict[str, Any]:
    environment = ensure_environment(f"trl-{TRL_VERSION}", trl_requirements(), cache_dir)
    (folder / "task.json").write_text(json.dumps(task))
    # Without -P the script's folder would come first on the path, with modules of names that others have too.
    command = [str(environment.python), "-P", str(_SCRIPT), str(folder / "task.json"), str(folder / "result.json")]
    threads = str(task["threads"])
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": threads}
    run_logged(command, folder / "trl.log", cores=task["threads"], env=offline)
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def _chat(prompt: Mapping[str, Any], system_prompt: str | None) -> dict[str, Any]:
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages = [*system, {"role": "user", "content": prompt["text"]}]
    return {"messages": messages, "answer": prompt["answer"], "token_ids": prompt["token_ids"]}


def _micro_batch(size: StepSize) -> int:
    return math.gcd(_MICRO_BATCH, size.prompts * size.rollouts)


def _comparison(
    size: StepSize,
    precision: str,
    ours: Sequence[Mapping[str, float]],
    trl: Mapping[str, Any] | None,
    missing: str,
) -> Comparison:
    how = "by default" if precision == "auto" else f"in {precision}"
    counted = ours[1:]
    parts = [f"{part} {quantity(median(step[f'time/{part}_s'] for step in counted), 's')}" for part in _PARTS]
    silent = median(step["groups/without_signal"] for step in counted)
    note = f"ours: {', '.join(parts)}; {silent:g} of {size.prompts} groups without a signal, which TRL trains on too"
    return Comparison(
        f"a whole step, {size.prompts} x {size.rollouts}, at most {size.max_tokens} tokens, {how}",
        median(step["step/time_s"] for step in counted),
        f"TRL {TRL_VERSION} GRPOTrainer, fp32, micro-batches of {_micro_batch(size)}",
        None if trl is None else median(trl["step_s"][1:]),
        note=note if trl is not None else f"TRL not measured: {missing}",
    )
