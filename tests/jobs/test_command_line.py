"""Bad input and dry runs: one line, exit status 2, nothing started, nothing written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobs.cli import main
from tests.jobs.support import DEMO, ROOT, overrides, run_train


def refuse(capsys, *args):
    """Run the command, expect status 2 and one line on stderr, and return the line."""
    assert main(["train", *args]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("vipray: error: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.stepz=3", "unknown config key run.stepz"),
        ("run.steps=three", "run.steps: Value 'three'"),
        ("allocation.rollout_budget=10", "allocation.rollout_budget=10 does not fit"),
        ("model.path=/no/such/folder", "model.path=/no/such/folder does not exist"),
        ("predictor.embedding_model=/no/encoder", "predictor.embedding_model=/no/encoder does not exist"),
        ("data.max_prompt_tokens=5", "no prompt is within data.max_prompt_tokens=5"),
        ("data.max_prompt_tokens=600", "512 positions"),
        ("ray.num_cpus=1", "ray.num_cpus=1 is less than the 1.5 that the actors ask for"),
        ("data.tasks.sum_1_digit.dataset=no_set", "data.tasks.sum_1_digit.dataset='no_set'"),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_status_2(capsys, tmp_path, tiny_model, override, words):
    line = refuse(capsys, str(DEMO), *overrides(tiny_model, tmp_path / "out"), override)
    assert words in line
    assert not (tmp_path / "out").exists()


def test_a_folder_with_another_run_is_refused_and_kept(capsys, tmp_path, tiny_model):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("precious")
    assert "already holds a run" in refuse(capsys, str(DEMO), *overrides(tiny_model, tmp_path))
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("metrics.jsonl", "precious")]


@pytest.mark.parametrize("every_steps", [0, 1])
def test_to_resume_without_a_checkpoint_writes_over_no_run(capsys, tmp_path, tiny_model, every_steps):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    args = [str(DEMO), *overrides(tiny_model, tmp_path), f"checkpoints.every_steps={every_steps}", "--resume", "auto"]
    assert "already holds a run" in refuse(capsys, *args)
    assert (folder / "metrics.jsonl").read_text() == '{"step": 0}\n'
    assert main(["train", *args, "checkpoints.every_steps=2", "--dry-run"]) == 0  # it stopped before its first one
    assert "the run begins at its first step" in capsys.readouterr().out


def test_what_may_have_changed_is_about_a_run_that_goes_on(capsys, tmp_path, tiny_model):
    line = refuse(capsys, str(DEMO), *overrides(tiny_model, tmp_path), "--accept-changed", "data")
    assert "give --resume auto too" in line
    line = refuse(capsys, str(DEMO), *overrides(tiny_model, tmp_path), "--resume", str(tmp_path / "none"))
    assert "no complete checkpoint" in line


def test_an_output_folder_that_cannot_be_made_is_refused(capsys, tmp_path, tiny_model):
    (tmp_path / "file").touch()
    line = refuse(capsys, str(DEMO), *overrides(tiny_model, tmp_path / "file"))
    assert "run.output_root" in line and "cannot be written to" in line


def test_texts_of_the_user_are_printed_as_they_are(capsys):
    assert main(["train", str(DEMO), "--dry-run", "run.name=x[/exp]"]) == 0
    assert "name: x[/exp]" in capsys.readouterr().out


def test_a_dry_run_prints_configuration_and_plan_and_starts_nothing(tmp_path):
    result = run_train(str(DEMO), "--dry-run", f"run.output_root={tmp_path}", "generators.count=3")
    assert result.returncode == 0, result.stderr
    assert "rollout_budget: 64" in result.stdout and "count: 3" in result.stdout
    for part in ("generator", "learner", "20 steps of 64 rollouts over 8 prompts", "1280 rollouts to train on"):
        assert part in result.stdout
    assert not list(tmp_path.iterdir())


def test_a_dry_run_needs_neither_ray_nor_torch_nor_vllm(tmp_path):
    code = (
        "import sys; from jobs.cli import main\n"
        f"assert main(['train', {str(DEMO)!r}, '--dry-run']) == 0\n"
        "print('loaded:', sorted({'ray', 'torch', 'vllm', 'transformers'} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "loaded: []" in result.stderr, result.stderr
