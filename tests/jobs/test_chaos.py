"""A training under random kills ends with what it would have ended with, and `vipray chaos` says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import psutil
import pytest

from jobs.chaos.disturbance import actors_among
from jobs.chaos.driver import Driver
from jobs.chaos.run_folder import parameters_difference
from jobs.chaos.schedule import KILLED, Moment, Schedule, killable, killable_nodes
from jobs.chaos.table import kinds_table, run_table
from jobs.cli import main
from jobs.plan import actor_requests
from tests.jobs.support import DEMO, ROOT, environment
from vipray.config import load_config
from vipray.evaluation.chaos_report import Kill, TrainedOn, report
from vipray.records import ALLOCATION_SCHEMA, ROLLOUT_SCHEMA
from vipray.report.run_data import METRICS_FILE

CHAOS = ROOT / "conf" / "chaos.yaml"
MOMENT = Moment(
    actors={"generator": 4, "verifier": 1, "learner": 1, "predictor": 1, "allocator": 1},
    node_actors=({"generator": 4, "learner": 1}, {"verifier": 1}, {}),
    is_node_missing=False,
    is_training=True,
    has_new_checkpoint=True,
)


def test_whatever_lives_may_be_killed():
    assert killable(KILLED, MOMENT, 4) == list(KILLED)
    assert killable(["verifier", "driver"], MOMENT, 4) == ["verifier", "driver"]


def test_nothing_is_killed_before_the_driver_trains():
    assert killable(KILLED, replace(MOMENT, is_training=False), 4) == []


def test_a_driver_is_killed_only_after_a_checkpoint_of_its_own():
    assert killable(["driver"], replace(MOMENT, has_new_checkpoint=False), 4) == []


def test_a_generator_stays_alive_unless_the_run_has_one_only():
    one_left = replace(MOMENT, actors={"generator": 1})
    assert killable(["generator"], one_left, 4) == []
    assert killable(["generator"], one_left, 1) == ["generator"]
    assert killable(["generator"], replace(MOMENT, actors={}), 1) == []


def test_one_node_at_a_time_and_neither_an_empty_one_nor_that_with_all_generators():
    assert killable_nodes(MOMENT) == [1]
    assert killable_nodes(replace(MOMENT, is_node_missing=True)) == []
    assert killable_nodes(replace(MOMENT, node_actors=({"generator": 2}, {"generator": 2}))) == [0, 1]


def test_a_schedule_is_a_function_of_its_seed():
    def draws(seed):
        schedule = Schedule(seed, 2.0)
        return [(schedule.wait_s(), schedule.kind(KILLED), schedule.index(8)) for _ in range(500)]

    drawn = draws(1)
    assert drawn == draws(1) and drawn != draws(2)
    assert sum(wait_s for wait_s, _, _ in drawn) / 500 == pytest.approx(2.0, rel=0.15)
    kinds = Counter(kind for _, kind, _ in drawn)
    assert set(kinds) == set(KILLED) and kinds["generator"] > kinds["verifier"] > kinds["driver"]
    assert {index for _, _, index in drawn} == set(range(8))


def test_actors_are_known_by_their_title_and_what_they_started_does_not_count():
    wait = "print('up', flush=True); input()"
    parent = (
        "import os, subprocess\n"
        f"command = ['ray::VerifierActor.score', '-c', {wait!r}]\n"
        "child = subprocess.Popen(command, executable=os.readlink('/proc/self/exe'), stdin=subprocess.PIPE)\n"
        "input()\n"
    )
    programs = {
        "ray::GeneratorActor.generate": wait,
        "ray::IDLE": wait,
        "ray::RolloutWriter": wait,
        "ray::VerifierActor": parent,
    }
    with ExitStack() as stack:
        started = {
            title: stack.enter_context(
                subprocess.Popen(
                    [title, "-c", program],
                    executable=sys.executable,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for title, program in programs.items()
        }  # their input is closed at the end, and they end
        for process in started.values():
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        here = psutil.Process().children(recursive=True)
        assert len(here) >= 5
        found = {(kind, process.pid) for kind, process in actors_among(here)}
    expected = {"generator": "ray::GeneratorActor.generate", "verifier": "ray::VerifierActor"}
    assert found == {(kind, started[title].pid) for kind, title in expected.items()}


class TestDriver:
    """What is seen of a driver from outside, with a process that only sleeps in its place."""

    @pytest.fixture
    def driver(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Driver, "start", _start_sleeping(Driver.start))
        with Driver([], environment(), tmp_path, tmp_path / "checkpoints", tmp_path / "driver.log") as driver:
            yield driver

    def test_it_trains_from_its_first_new_step_on(self, driver, tmp_path):
        assert not driver.look() and not driver.is_training
        metrics = tmp_path / METRICS_FILE
        metrics.write_text("{}\n")
        assert driver.look() and driver.is_training
        assert not driver.look() and driver.is_training

    def test_what_a_resumed_one_takes_back_is_no_step(self, driver, tmp_path):
        metrics = tmp_path / METRICS_FILE
        metrics.write_text("{}\n" * 3)
        driver.kill()
        driver.start()
        assert not driver.look()
        metrics.write_text("{}\n" * 2)
        assert not driver.look() and not driver.is_training
        metrics.write_text("{}\n" * 3)
        assert driver.look() and driver.is_training

    def test_a_new_checkpoint_is_one_since_its_start(self, driver, tmp_path):
        folder = tmp_path / "checkpoints" / "step-000002"
        folder.mkdir(parents=True)
        assert not driver.has_new_checkpoint
        (folder / "checkpoint.json").write_text("{}")
        assert driver.has_new_checkpoint
        driver.kill()
        assert driver.status == -signal.SIGKILL
        driver.start()
        assert driver.status is None and not driver.has_new_checkpoint


def _start_sleeping(start):
    def start_sleeping(self):
        self._command = [sys.executable, "-c", "input()"]
        reading, self._writing = os.pipe()
        start(self)
        os.close(reading)

    return start_sleeping


def refuse(capsys, *args):
    """Run the command, expect status 2 and one line on stderr, and return the line."""
    assert main(["chaos", *args]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vipray: error: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--kinds", "generator,cable"], "--kinds: 'cable' is not one of generator"),
        (["--kills", "0"], "--kills must be >= 1, got 0"),
        (["--seed", "-1"], "--seed must be >= 0, got -1"),
        (["--nodes", "1"], "--nodes must be >= 2"),
        (["checkpoints.every_steps=0"], "checkpoints.every_steps=0 leaves a killed driver nothing"),
        (["checkpoints.folder=/somewhere"], "checkpoints.folder=/somewhere would hold the checkpoints of two runs"),
        (["--json", "/no/such/folder/file"], "--json must name a file in a folder that exists"),
        (["run.stepz=1"], "unknown config key run.stepz"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, args, words):
    assert words in refuse(capsys, str(CHAOS), *args)


def test_the_configuration_for_it_scripts_everything():
    config = load_config(CHAOS)
    assert {config.generators.engine, config.learner.engine} == {"scripted"}
    assert config.pipeline.max_staleness == 0 and config.checkpoints.every_steps > 0
    wanted = {request.role: request.num_cpus for request in actor_requests(config)}
    assert {role for role, num_cpus in wanted.items() if not num_cpus} == {"rollout writer"}  # the head has none


def test_parameters_of_a_learner_that_is_not_scripted_are_not_compared():
    config = load_config(DEMO)
    assert parameters_difference(config, config) is None


def test_tables_hold_all_figures():
    nothing = TrainedOn(ALLOCATION_SCHEMA.empty_table(), ROLLOUT_SCHEMA.empty_table())
    found = report(
        [Kill("generator", 1.0)], [], nothing, nothing, parameters=None, is_complete=True, is_comparable=False
    )
    kinds, run = kinds_table(found), run_table(found)
    assert [cell for column in kinds.columns for cell in column.cells] == ["generator", "1", "0", "0", "1", *"---"]
    cells = dict(zip(run.columns[0].cells, run.columns[1].cells, strict=True))
    assert cells["rollouts lost"] == "0" and cells["rewards that differ"] == "not comparable"


@pytest.mark.ray
def test_a_run_under_random_kills_ends_as_if_nothing_had_happened(tmp_path):
    num_steps = 14
    command = [
        *(sys.executable, "-m", "jobs.chaos", str(CHAOS)),
        *("--kills", "10", "--nodes", "2", "--seed", "3", "--json", str(tmp_path / "chaos.json")),
        *(f"run.output_root={tmp_path / 'out'}", f"run.steps={num_steps}"),
        *("generators.count=4", "generators.max_num_seqs=8", "verifiers.count=1", "scripted.latency_s=0.4"),
    ]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600)
    logs = "".join(path.read_text() for path in tmp_path.glob("out/*/*.log"))
    assert result.returncode == 0, result.stdout + result.stderr + logs[-4000:]
    found = json.loads((tmp_path / "chaos.json").read_text())
    num_rollouts = num_steps * load_config(CHAOS).allocation.rollout_budget
    assert found["is_complete"] and found["problems"] == [] and len(found["kills"]) == 10
    assert found["account"] == {"asked": num_rollouts, "lost": 0, "double": 0, "strange": 0}
    assert found["differences"] == {"compared": num_rollouts, "ids": 0, "n": 0, "rewards": 0, "tokens": 0}
    assert found["parameters"] == 0.0
