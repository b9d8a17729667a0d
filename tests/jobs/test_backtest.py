from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import main


@pytest.fixture
def log(tmp_path):
    """Thirty prompts of fixed success probabilities, eight visits of eight rollouts."""
    rng = np.random.default_rng(0)
    rates = {f"p{q}": (rng.binomial(8, q / 29, 8) / 8).tolist() for q in range(30)}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(rates))
    texts = [f"Question {q}" for q in range(30)]
    pq.write_table(pa.table({"prompt_id": list(rates), "text": texts}), tmp_path / "prompts.parquet")
    return path


def test_predictors_of_history_are_judged_without_texts(log, tmp_path, capsys):
    out, picture = tmp_path / "out.json", tmp_path / "picture.svg"
    assert main(["backtest", str(log), "--policies", "vip,uniform", "--json", str(out), "--plot", str(picture)]) == 0
    rows = {(row["predictor"], row["policy"]): row["buckets"] for row in json.loads(out.read_text())}
    assert ("beta", "vip") in rows and ("hybrid", "vip") not in rows
    assert rows["beta", "uniform"]["all"]["ratio"] == 1.0
    assert rows["beta", "vip"]["5-14"]["ratio"] < 1.0
    assert set(rows["beta", "vip"]) == {"0", "1", "2-4", "5-14", "all"}
    printed = capsys.readouterr().out
    assert "moving_average" in printed and f"{rows['beta', 'vip']['5-14']['ratio']:.3f}" in printed
    assert picture.read_text().count("<svg") == 1


def test_texts_bring_the_others_in_and_cold_start_judges_prompts_never_seen(log, tmp_path, capsys):
    out = tmp_path / "out.json"
    args = ["--prompts", str(tmp_path / "prompts.parquet"), "--predictors", "hybrid,ridge", "--json", str(out)]
    assert main(["backtest", str(log), *args, "--cold-start", "0.3", "--cache-dir", str(tmp_path)]) == 0
    rows = json.loads(out.read_text())
    assert [row["predictor"] for row in rows] == ["hybrid", "ridge"]
    assert {name for row in rows for name in row["buckets"]} == {"0", "all"}
    assert rows[0]["buckets"]["0"]["count"] == 5 * 9  # five draws of nine prompts


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--predictors", "oracle"], "--predictors: 'oracle'"),
        (["--policies", "best"], "--policies: 'best'"),
        (["--predictors", "hybrid"], "needs the prompts' texts: give them with --prompts"),
        (["--lower", "1"], "--lower must be >= 2 for rloo, got 1"),
        (["--budget", "40"], "budget of 40 does not fit"),
        (["--trials", "3"], "is not a multiple of 1/3"),
        (["--cold-start", "1.5"], "--cold-start must lie in (0, 1)"),
        (["--plot", "x.txt"], "--plot must end in"),
    ],
)
def test_bad_input_is_one_line_and_status_2(log, capsys, args, words):
    assert main(["backtest", str(log), *args]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
