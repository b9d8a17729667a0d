"""SIGKILL of a generator in the midst of a batch, with real vLLM engines: what it costs, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.jobs.support import DEMO, ROOT, environment, overrides, process_tree, still_running, stop, train_command

pytestmark = [pytest.mark.ray, pytest.mark.vllm]
STEPS = 4


def generators(job):
    """Actor processes of generators, oldest first."""
    found = []
    for process in process_tree(job.pid):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::GeneratorActor"):
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.create_time())


def test_a_killed_engine_costs_what_it_had_not_finished_and_leaves_no_process(tmp_path, tiny_model):
    args = overrides(
        tiny_model, tmp_path, run__steps=STEPS, generators__count=2, sampling__max_tokens=120, generators__num_cpus=0.5
    )
    more = ["generators.max_num_seqs=2", "supervision.generators.backoff_s=0", "data.max_prompt_tokens=160"]
    folder, log = tmp_path / "demo", tmp_path / "log"
    segments = set(Path("/dev/shm").glob("psm_*"))
    with log.open("w") as file:
        job = subprocess.Popen(
            train_command(str(DEMO), *args, *more), cwd=ROOT, env=environment(), stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 240
        while "publishing the initial weights" not in log.read_text():
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        victim, _ = generators(job)
        engine = victim.children(recursive=True)
        assert any("EngineCore" in " ".join(process.cmdline()) for process in engine)
        while victim.cpu_times().user < 1 or not making(engine):  # in the midst of rollouts
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        os.kill(victim.pid, signal.SIGKILL)
        assert still_running(engine, wait_s=5) == []  # and with them their memory is free
        assert job.wait(300) == 0, log.read_text()
    finally:
        stop(process_tree(job.pid))
    assert set(Path("/dev/shm").glob("psm_*")) <= segments
    (recovery,) = [json.loads(line) for line in (folder / "recoveries.jsonl").read_text().splitlines()]
    assert recovery["kind"] == "generator" and 1 <= recovery["num_reissued"] <= 2
    assert recovery["lost_at_s"] <= recovery["reissued_at_s"]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["rollouts/reissued"] for line in metrics) == recovery["num_reissued"]
    for step in range(STEPS):
        rows = pq.read_table(folder / "rollouts" / f"step={step:05d}").to_pylist()
        assert len({(row["prompt_id"], row["k"]) for row in rows}) == len(rows) == 24
        assert {row["policy_version_first"] for row in rows} == {step}
    assert "recovered from the loss of generator-" in log.read_text()


def making(engine):
    """Whether the engine's processes are at work."""
    before = sum(process.cpu_times().user for process in engine)
    time.sleep(0.2)
    return sum(process.cpu_times().user for process in engine) - before > 0.05
