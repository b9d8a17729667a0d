from __future__ import annotations

import json

import pytest

from jobs.cli import main
from tests.jobs.support import DEMO

SMALL = [str(DEMO), "run.steps=4", "generators.max_num_seqs=8"]


def simulated(tmp_path, *options):
    out = tmp_path / "out.json"
    assert main(["simulate", *SMALL, "--json", str(out), *options]) == 0
    return json.loads(out.read_text())


def test_the_table_and_the_file_tell_the_same(tmp_path, capsys):
    runs = simulated(tmp_path)
    printed = capsys.readouterr().out
    assert [run["max_staleness"] for run in runs] == [0, 1]
    for run in runs:
        assert len(run["steps"]) == 4
        assert f"{run['generator_utilisation']:.1%}" in printed
        assert max(step["max_staleness"] for step in run["steps"]) <= run["max_staleness"]
    assert f"{runs[0]['duration'] / runs[1]['duration']:.2f}" in printed
    assert "4 steps of 64 rollouts over 8 prompts, 2 generators of 8 slots" in " ".join(printed.split())


def test_the_configuration_decides(tmp_path):
    few, many = (simulated(tmp_path, "--generators", number)[0] for number in ("1", "8"))
    assert few["steps"][0]["lower_bound"] > many["steps"][0]["lower_bound"]
    stale = simulated(tmp_path, "pipeline.max_staleness=2", "pipeline.on_stale=reissue")
    assert [run["max_staleness"] for run in stale] == [0, 2]
    longer = simulated(tmp_path, "sampling.max_tokens=120")[0]
    usual = simulated(tmp_path)[0]
    bounds = [run["steps"][0]["lower_bound"] for run in (longer, usual)]
    assert bounds[0] == pytest.approx(10 * bounds[1])  # max_tokens of the demo is 12


def test_the_same_command_gives_the_same(tmp_path):
    options = ["--lifetime", "5"]
    assert simulated(tmp_path, *options) == simulated(tmp_path, *options)


def test_the_last_run_can_be_looked_at_as_a_trace(tmp_path):
    trace = tmp_path / "trace.json"
    simulated(tmp_path, "--trace", str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert sum(event["name"].startswith("train ") for event in events) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--generators", "0"], "--generators must be >= 1 and finite, got 0"),
        (["--longest", "0.5"], "--longest must be >= 1 and finite, got 0.5"),
        (["--training", "nan"], "--training must be >= 0 and finite, got nan"),
        (["--lifetime", "0.5"], "--lifetime must be >= 1, the time of a step, and finite, got 0.5"),
        (["--trace", "/no/such/folder/trace.json"], "--trace must name a file in a folder that exists"),
        (["pipeline.max_staleness=-1"], "pipeline.max_staleness must be >= 0, got -1"),
    ],
)
def test_bad_options_are_one_line_and_status_2(capsys, options, words):
    assert main(["simulate", *SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vipray: error: ") and captured.err.count("\n") == 1
    assert words in captured.err and not captured.out
