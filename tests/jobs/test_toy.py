from __future__ import annotations

import json

import numpy as np
import pytest

from jobs.cli import main
from jobs.toy import counterpart, paired_difference, study_arms
from vipray.evaluation.toy_policy import Arm

SMALL = ["--seeds", "3", "--steps", "4", "--prompts", "12", "--batch", "4", "--budget", "32"]


def test_the_table_and_the_file_tell_the_same_of_every_arm(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["toy", *SMALL, "--json", str(out)]) == 0
    written, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert len(written["arms"]) == 11 and written["settings"]["budget"] == 32
    first = np.array(written["arms"][0]["final_success"])
    for row in written["arms"]:
        values = np.array(row["final_success"])
        assert len(values) == 3 and f"{values.mean():.4f}" in printed
        assert row["vs_reference"]["mean"] == pytest.approx((values - first).mean())
        assert ("vs_uniform" in row) == (row["policy"] == "vip")
    assert "3 paired seeds, 4 steps of 32 rollouts over 4 of 12 prompts" in printed


def test_the_same_command_prints_the_same(capsys):
    printed = []
    for _ in range(2):
        assert main(["toy", *SMALL]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_any_predictor_that_is_offered_runs(capsys):
    assert main(["toy", *SMALL, "--steps", "2", "--predictor", "hybrid"]) == 0
    assert "hybrid" in capsys.readouterr().out


def test_an_allocation_is_compared_to_uniform_counts_of_the_same_loss():
    arms = study_arms("beta")
    assert arms[0] == Arm("mean_success", "uniform", "beta")
    for arm in arms:
        uniform = counterpart(arm, arms)
        assert (uniform is None) == (arm.policy == "uniform")
        assert uniform is None or (uniform.objective, uniform.policy) == (arm.objective, "uniform")
        assert uniform is None or arm.objective == "mean_success" or uniform.predictor == arm.predictor


def test_the_interval_of_a_paired_difference_is_students():
    values, baseline = np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0])  # differences 1, 1, 3
    difference = paired_difference(values, baseline)
    assert difference.mean == pytest.approx(5 / 3)
    assert difference.half_width == pytest.approx(4.302653 * np.sqrt(4 / 3) / np.sqrt(3))
    assert paired_difference(values, values - 0.5).half_width == 0.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "1"], "--seeds must be >= 2, got 1"),
        (["--steps", "0"], "--steps must be >= 1, got 0"),
        (["--batch", "13"], "--batch must be <= --prompts 12, got 13"),
        (["--lower", "1"], "--lower must be >= 2, got 1"),
        (["--lower", "2", "--estimator", "dr_grpo"], "--lower must be >= 3, got 2"),
        (["--budget", "11"], "--budget, --lower, --upper: a budget of 11 does not fit 4 prompts"),
        (["--upper", "2"], "--budget, --lower, --upper"),
        (["--learning-rate", "nan"], "--learning-rate must be > 0 and finite, got nan"),
        (["--learning-rate", "-1"], "--learning-rate must be > 0 and finite, got -1.0"),
        (["--json", "/no/such/folder/out.json"], "--json must name a file in a folder that exists"),
    ],
)
def test_bad_options_are_one_line_and_status_2(capsys, options, words):
    assert main(["toy", *SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vipray: error: ") and captured.err.count("\n") == 1
    assert words in captured.err and not captured.out
