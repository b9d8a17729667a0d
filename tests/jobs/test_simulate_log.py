from __future__ import annotations

import json

import pytest

from jobs.cli import main


def test_a_log_goes_through_the_backtest(tmp_path, capsys):
    log, scores = tmp_path / "log.json", tmp_path / "scores.json"
    assert main(["simulate-log", str(log), "--tasks", "3", "--per-level", "5", "--epochs", "4"]) == 0
    assert capsys.readouterr().out.split() == [str(log), str(tmp_path / "log.truth.parquet")]
    assert len(json.loads(log.read_text())) == 60
    assert main(["backtest", str(log), "--predictors", "beta", "--json", str(scores)]) == 0
    (beta,) = [row for row in json.loads(scores.read_text()) if row["predictor"] == "beta"]
    assert beta["buckets"]["all"]["count"] == 240


def test_the_same_seed_writes_the_same_log(tmp_path):
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert (
            main(["simulate-log", str(tmp_path / f"{name}.json"), "--reasoning-gym", "--tasks", "2", "--seed", seed])
            == 0
        )
    a, b, c = ((tmp_path / f"{name}.json").read_text() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a.prompts.parquet").exists()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("log.json", ["--tasks", "0"], "--tasks must be >= 1, got 0"),
        ("log.json", ["--tasks", "13", "--reasoning-gym"], "--tasks must be <= 12 with --reasoning-gym, got 13"),
        ("log.json", ["--per-level", "0"], "--per-level must be >= 1, got 0"),
        ("log.json", ["--trials", "1"], "--trials must be >= 2, got 1"),
        ("log.json", ["--seed", "-1"], "--seed must be >= 0, got -1"),
        ("log.json", ["--own-spread", "nan"], "--own-spread must be >= 0 and finite, got nan"),
        ("log.parquet", [], "the log must be named OUT.json"),
        ("no/folder/log.json", [], "a file in a folder that exists"),
    ],
)
def test_bad_options_are_one_line_and_status_2(tmp_path, capsys, name, options, words):
    assert main(["simulate-log", str(tmp_path / name), *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vipray: error: ") and captured.err.count("\n") == 1
    assert words in captured.err and not list(tmp_path.iterdir())
