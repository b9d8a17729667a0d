"""Configurations and processes for tests that run whole jobs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "conf" / "demo.yaml"


def overrides(model: Path | str, output_root: Path, **more: object) -> list[str]:
    """Turn the demo into a run of a minute: a tiny model that answers with one token, few prompts, few rollouts."""
    values = {
        "model.path": model,
        "run.output_root": output_root,
        "run.steps": 2,
        "sampling.max_tokens": 1,
        "data.max_prompt_tokens": 200,
        "generators.kv_cache_mib": 64,
        "generators.count": 1,
        "verifiers.count": 1,
        "allocation.prompts_per_batch": 4,
        "allocation.rollout_budget": 24,
        "allocation.upper": 12,
        "evaluation.rollouts_per_prompt": 0,
        "ray.object_store_mib": 200,
    } | {key.replace("__", "."): value for key, value in more.items()}
    return [f"{key}={value}" for key, value in values.items()]


def train_command(*args: str) -> list[str]:
    return [sys.executable, "-m", "jobs.train", *args]


def environment(**more: str) -> dict[str, str]:
    """The environment without a cluster's address, so that the job starts a Ray of its own."""
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | more


def run_train(*args: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        train_command(*args), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout_s
    )


def process_tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def still_running(processes: list[psutil.Process], wait_s: float) -> list[str]:
    """Names of those that are alive after at most `wait_s` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=wait_s)
    names = []
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                names.append(process.name())
    return names


def stop(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ray_head() -> Iterator[str]:
    """Start a Ray head of the test's own and yield the address of its job API; end it by its process tree."""
    temp_dir = tempfile.mkdtemp(prefix="vr")  # short: Unix sockets below it have at most 107 characters
    port, dashboard = free_port(), free_port()
    options = [
        "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1",
        f"--ray-client-server-port={free_port()}", f"--temp-dir={temp_dir}", "--num-cpus=3",
        f"--object-store-memory={300 << 20}", "--disable-usage-stats",
    ]  # fmt: skip
    log_path = Path(temp_dir) / "head.log"
    with log_path.open("w") as log:
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
            env=environment(RAY_AUTH_MODE="disabled", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 90
        while "runtime started" not in log_path.read_text():
            assert head.poll() is None and time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        stop(process_tree(head.pid))
        head.wait(10)
