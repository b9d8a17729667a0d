"""A driver that is killed or stopped, and the run that goes on: real learner in fp32, one rank, scripted engines."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from tests.jobs.support import DEMO, ROOT, environment, overrides, process_tree, run_train, still_running, stop
from tests.jobs.support import train_command as command
from vipray.checkpoints import complete_checkpoints, read_manifest
from vipray.learner.checkpoint import read_masters

pytestmark = pytest.mark.ray
STEPS = 8
SCRIPTED = {
    "run__steps": STEPS,
    "generators__engine": "scripted",
    "learner__precision": "fp32",
    "learner__learning_rate": 1e-3,
    "learner__schedule": "cosine",
    "predictor__kind": "beta",
    "checkpoints__every_steps": 2,
    "scripted__latency_s": 0.1,
}


def arguments(model, root, **more):
    return [str(DEMO), *overrides(model, root, **(SCRIPTED | more))]


@contextmanager
def training(args, log):
    """Start a run; end whatever is left of it afterwards."""
    with log.open("a") as file:
        job = subprocess.Popen(command(*args), cwd=ROOT, env=environment(), stdout=file, stderr=file)
    seen: list[psutil.Process] = []
    try:
        yield job, seen
    finally:
        stop([*process_tree(job.pid), *seen])
        job.wait(10)


def wait_for_steps(job, folder, number, log, timeout_s=240):
    deadline = time.monotonic() + timeout_s
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= number):
        assert job.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def outcome(folder):
    """Allocations, batches and parameters of a complete run."""
    checkpoint = complete_checkpoints(folder / "checkpoints")[-1]
    manifest = read_manifest(checkpoint)
    assert manifest.step == STEPS
    shapes = {name: tuple(shape) for name, shape in zip(manifest.trained, manifest.shapes, strict=True)}
    rows = pq.read_table(folder / "rollouts", partitioning=None).to_pylist()
    keys = ("step", "prompt_id", "k", "policy_version_first", "completion_token_ids", "logprobs", "reward", "outcome")
    batches = sorted(tuple(str(row[key]) for key in keys) for row in rows)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "steps": [line["step"] for line in metrics],
        "losses": [line["learner/grad_norm"] for line in metrics],
        "rates": [line["learner/learning_rate"] for line in metrics],
        "allocations": pq.read_table(folder / "allocations.parquet").to_pylist(),
        "batches": batches,
        "masters": {name: tensor.numpy() for name, tensor in read_masters(checkpoint, shapes).items()},
    }


def assert_same(one, other):
    assert one["steps"] == other["steps"] == list(range(STEPS))
    assert one["allocations"] == other["allocations"]
    assert one["batches"] == other["batches"]
    assert one["losses"] == other["losses"] and one["rates"] == other["rates"]
    assert one["masters"].keys() == other["masters"].keys()
    for name, tensor in one["masters"].items():
        assert np.array_equal(tensor, other["masters"][name]), name


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tiny_model):
    """What a run comes to that nobody disturbs."""
    root = tmp_path_factory.mktemp("whole")
    whole = run_train(*arguments(tiny_model, root))
    assert whole.returncode == 0, whole.stderr
    found = outcome(root / "demo")
    assert all(norm > 0 for norm in found["losses"])
    return found


def test_a_killed_rank_is_replaced_with_its_group_and_the_parameters_are_the_same(tmp_path, tiny_model, expected):
    ranks = {"learner__ranks": 2, "learner__threads": 1, "learner__num_cpus": 0.5, "checkpoints__every_steps": 3}
    folder, log = tmp_path / "demo", tmp_path / "log"
    with training(arguments(tiny_model, tmp_path, **ranks), log) as (job, _):
        wait_for_steps(job, folder, 5, log)
        victim = max((p for p in process_tree(job.pid) if "LearnerActor" in p.name()), key=lambda p: p.pid)
        victim.kill()
        assert job.wait(240) == 0, log.read_text()
    (recovery,) = [json.loads(line) for line in (folder / "recoveries.jsonl").read_text().splitlines()]
    assert recovery["kind"] == "learner" and "trained again on" in recovery["cause"]
    found = outcome(folder)
    assert (found["steps"], found["batches"]) == (expected["steps"], expected["batches"])
    assert found["allocations"] == expected["allocations"] and found["rates"] == expected["rates"]
    for name, tensor in found["masters"].items():  # two ranks add up in another order than one
        assert np.allclose(tensor, expected["masters"][name], rtol=0, atol=1e-4), name


def test_a_killed_and_a_stopped_driver_go_on_to_the_same_parameters(tmp_path, tiny_model, expected, capsys):
    folder, log = tmp_path / "killed" / "demo", tmp_path / "killed.log"
    args = [*arguments(tiny_model, tmp_path / "killed"), "--resume", "auto"]
    with training(args, log) as (job, seen):
        wait_for_steps(job, folder, random.Random(time.time()).randint(2, STEPS - 2), log)
        seen += process_tree(job.pid)
        job.kill()
        job.wait(30)
        left = still_running(seen, wait_s=20)
        assert [name for name in left if not name.endswith("Agent")] == []  # Ray's own agents take their time
    assert "the run begins at its first step" in log.read_text()
    again = run_train(*args)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stdout and "recovered from the loss of driver" in again.stdout
    assert_same(outcome(folder), expected)
    recoveries = [json.loads(line) for line in (folder / "recoveries.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in recoveries] == ["driver"]

    folder, log = tmp_path / "stopped" / "demo", tmp_path / "stopped.log"
    args = arguments(tiny_model, tmp_path / "stopped", checkpoints__every_steps=100)
    with training(args, log) as (job, seen):
        wait_for_steps(job, folder, 3, log)
        seen += process_tree(job.pid)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143, log.read_text()
        assert still_running(seen, wait_s=15) == []
    assert "go on with: vipray train" in log.read_text()
    (checkpoint,) = complete_checkpoints(folder / "checkpoints")
    assert 3 <= read_manifest(checkpoint).step < STEPS
    again = run_train(*args, "--resume", str(checkpoint))
    assert again.returncode == 0, again.stderr
    assert_same(outcome(folder), expected)

    done = run_train(*args, "--resume", "auto")
    assert done.returncode == 0 and "nothing is left to do" in done.stdout

    # What is not as it was is refused by name, with what would accept it.
    capsys.readouterr()
    for change, words in (
        ("allocation.rollout_budget=32", ["allocation.rollout_budget: 24 then, 32 now", "--accept-changed batch"]),
        ("data.tasks.one_number.seed=7", ["fingerprint", "--accept-changed data"]),
        ("run.seed=5", ["run.seed: 0 then, 5 now", "--accept-changed seed"]),
    ):
        assert main(["train", *args, change, "run.steps=9", "--resume", "auto"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert all(word in line for word in words), line
    assert_same(outcome(folder), expected)
