"""The learner's benchmark at a tiny size: that both sides do the work that is compared, not how fast they are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jobs.bench import learner, trl_step, whole_step
from jobs.bench.environment import STAMP, InstallationError, ensure_environment, environment_folder
from jobs.bench.learner import BatchSize
from jobs.bench.results import Comparison
from jobs.bench.whole_step import DEMO, RunError, StepSize
from vipray.config import TaskConfig, load_config
from vipray.data.prompts import Prompt
from vipray.data.tasks import open_task
from vipray.verifiers.reasoning_gym import ReasoningGymVerifier

TINY = BatchSize(prompts=2, rollouts=4, prompt_tokens=6, completion_tokens=3)


def test_training_is_measured_packed_and_plain_for_each_group_size(tiny_model):
    rows, details = learner._training(TINY, str(tiny_model), (6,), repeats=2)
    separate, padded = "a row for each rollout", "padded rows, each with its prompt"
    assert [(row.what, row.alternative) for row in rows] == [
        ("train on 2 x 4, packed", separate),
        ("train on 2 x 6, packed", separate),
        ("train on 2 x 4, packed", padded),
        ("train on 2 x 6, packed", padded),
        ("train on 2 x 4, packed, bf16", "the same in fp32"),
    ]
    assert all(row.ours > 0 and row.theirs is not None and row.theirs > 0 for row in rows)
    assert rows[4].theirs == rows[0].ours
    seconds = details["seconds"]
    assert {kind: {n: len(times) for n, times in found.items()} for kind, found in seconds.items()} == {
        "packed, fp32": {"4": 2, "6": 1},
        f"{separate}, fp32": {"4": 2, "6": 1},
        f"{padded}, fp32": {"4": 2, "6": 1},
        "packed, bf16": {"4": 2},
    }
    assert details["size"] == dataclasses.asdict(TINY)


def test_rollouts_carry_the_models_own_logprobs_and_every_group_has_a_signal(tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM

    path = tmp_path / "rollouts.parquet"
    assert learner.write_rollouts(str(tiny_model), str(path), **dataclasses.asdict(TINY)) == str(tiny_model)
    rows = pq.read_table(path).to_pylist()
    assert [(row["prompt_id"], row["k"]) for row in rows] == [(f"prompt-{q}", k) for q in range(2) for k in range(4)]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for row in rows:
        assert row["reward"] == (row["k"] + 1) % 2
        prompt, completion = row["prompt_token_ids"], row["completion_token_ids"]
        assert (len(prompt), len(completion)) == (6, 3)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
        expected = torch.log_softmax(logits, -1)[[5, 6, 7], completion]
        assert row["logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


class TrainerThatSkips:
    """Takes a step and trains on less than it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def train(self, rollouts, allocation):
        self.seen = [batch.num_rows for batch in rollouts]
        assert allocation.n.tolist() == [3, 3]
        return {"learner/tokens": sum(self.seen) * 3 - 1, "learner/skipped_step": 0.0}


def test_a_step_that_leaves_tokens_out_is_no_measurement(tiny_model, tmp_path):
    path = tmp_path / "rollouts.parquet"
    learner.write_rollouts(str(tiny_model), str(path), **dataclasses.asdict(TINY))
    trainer = TrainerThatSkips()
    with pytest.raises(RuntimeError, match="not one on all 18 tokens"):
        learner._step_s(trainer, pq.read_table(path), 3)
    assert trainer.seen == [1] * 6


@pytest.mark.parametrize(("theirs", "targets"), [(5.0, ["met", "missed"]), (None, ["met"])])
def test_targets_are_lower_limits_of_ratios_and_only_of_what_was_measured(monkeypatch, theirs, targets):
    packing = Comparison("packed", 1.0, "plain", 2.3)
    sizes = []

    def compare(size, **_):
        sizes.append(size)
        return [Comparison("a step", 2.0, "TRL", theirs, note="why")], {"ours": []}

    monkeypatch.setattr(learner, "_training", lambda *_: ([packing], {"seconds": {}}))
    monkeypatch.setattr(whole_step, "compare", compare)
    result = learner.benchmark(thorough=False)
    assert [str(target).rpartition(" ")[2] for target in result.targets] == targets
    assert str(result.targets[0]) == "target ratio of packed to plain at least 2.3 times: 2.3 times, met"
    assert result.as_json()["details"] == {"training": {"seconds": {}}, "whole_step": {"ours": []}}
    learner.benchmark()
    assert [size.steps for size in sizes] == [3, 4]


COMPLETIONS = (
    "{0}", "3 + 4 = {0}.", "It is {0}, I think", "{0}.0", "{0}.5", "{0}5", "{0} of 3", "I do not know", "",
    "<answer>{0}</answer> and not 8", "<answer>8</answer> and not {0}",
)  # fmt: skip


def test_trl_is_given_the_same_rewards_for_answers_in_plain_form():
    task = TaskConfig(dataset="chain_sum", size=30, params={"max_terms": 2, "max_digits": 1})
    verifier = ReasoningGymVerifier({"sums": task})
    for index, entry in enumerate(open_task("sums", task)):
        prompt = Prompt(f"sums/{index}", "sums", index, str(entry["question"]), str(entry["answer"]))
        completions = [text.format(prompt.answer) for text in COMPLETIONS]
        messages = [[{"role": "assistant", "content": text}] for text in completions]
        rewards = trl_step.exact_number(messages, answer=[prompt.answer] * len(messages), prompts=None)
        assert rewards == [verifier.verify(prompt, text).reward for text in completions], completions
        assert 0 < sum(rewards) < len(rewards)
    assert trl_step.final_number("1,024 or rather -2,048.5.") == Decimal("-2048.5")


def fake_run(folder: Path, n: int = 2) -> Path:
    """The files of a run of three steps with two prompts each."""
    folder.mkdir()
    prompts = [{"prompt_id": f"p{q}", "text": f"{q} + 1", "answer": str(q + 1), "token_ids": [q]} for q in range(6)]
    order = [(step, f"p{(2 * step + 3 + i) % 6}") for step in range(3) for i in range(2)]
    pq.write_table(pa.Table.from_pylist(prompts), folder / "prompts.parquet")
    rows = [{"step": step, "prompt_id": prompt_id, "n": n} for step, prompt_id in order]
    pq.write_table(pa.Table.from_pylist(rows[2:] + rows[:2]), folder / "allocations.parquet")
    metrics = [
        {"step/time_s": s, "time/generation_s": 1.0, "time/training_s": s - 2, "time/publishing_s": 1.0,
         "time/loading_s": 0.5, "groups/without_signal": 1.0}
        for s in (90.0, 10.0, 12.0)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return folder


SIZE = StepSize(prompts=2, rollouts=2, max_tokens=4, steps=3)


def test_trl_is_given_the_prompts_of_each_step_and_the_same_settings(tiny_model, tmp_path):
    config = load_config(
        DEMO, [*whole_step.settings_of(SIZE, "fp32"), "allocation.lower=2", f"model.path={tiny_model}"]
    )
    task = whole_step.trl_task(config, SIZE, fake_run(tmp_path / "run"), threads=1)
    chats = [prompt["messages"] for prompt in task["prompts"]]
    assert chats == [[{"role": "user", "content": f"{q} + 1"}] for q in (3, 4, 5, 0, 1, 2)]
    assert [prompt["answer"] for prompt in task["prompts"]] == ["4", "5", "6", "1", "2", "3"]
    assert [prompt["token_ids"] for prompt in task["prompts"]] == [[3], [4], [5], [0], [1], [2]]
    assert (task["model_folder"], task["temperature"], task["micro_batch"]) == (str(tiny_model), 0.7, 4)
    arguments = trl_step.training_arguments(task, tmp_path)
    assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] == 4
    assert (arguments["max_steps"], arguments["num_generations"], arguments["max_completion_length"]) == (3, 2, 4)
    with pytest.raises(RunError, match="not every prompt had 2"):
        whole_step.trl_task(config, SIZE, fake_run(tmp_path / "uneven", n=3), threads=1)


def test_without_trl_our_step_is_reported_with_the_reason(monkeypatch, tiny_model, tmp_path):
    commands = []

    def run(command, log, **_):
        commands.append(command)
        fake_run(log.parent / log.stem)

    def refuse(*_):
        raise InstallationError("no network")

    monkeypatch.setattr(whole_step, "run_logged", run)
    monkeypatch.setattr(whole_step, "ensure_environment", refuse)
    more = ["allocation.lower=2", f"model.path={tiny_model}"]
    rows, details = whole_step.compare(SIZE, cores=1, overrides=more)
    assert [row.what.rpartition(", ")[2] for row in rows] == ["by default", "in fp32"]
    for row in rows:
        assert (row.ours, row.theirs, row.ratio) == (11.0, None, None)  # the first step does not count
        assert row.note == "TRL not measured: no network"
    assert details["trl"] == {"missing": "no network"}
    assert {precision: len(steps) for precision, steps in details["ours"].items()} == {"auto": 3, "fp32": 3}
    assert [command[-4] for command in commands] and "learner.precision=fp32" in commands[1]
    assert commands[0][1:4] == ["-m", "jobs.train", str(DEMO)]
    assert {"allocation.policy=uniform", "run.steps=3", *more} <= set(commands[0])


def test_a_command_that_fails_or_hangs_is_told_in_one_line(monkeypatch, tmp_path):
    log = tmp_path / "job.log"
    count = "import os; print(len(os.sched_getaffinity(0)))"
    if hasattr(os, "sched_setaffinity"):
        whole_step.run_logged([sys.executable, "-c", count], log, cores=1)
        assert log.read_text() == "1\n"
    whole_step.run_logged([sys.executable, "-c", "import os; print(os.environ['X'])"], log, env={"X": "1"})
    assert log.read_text() == "1\n"
    fail = "import sys; print('first'); sys.exit('the reason')"
    with pytest.raises(RunError, match=r"^job ended with status 1: the reason$"):
        whole_step.run_logged([sys.executable, "-c", fail], log)
    monkeypatch.setattr(whole_step, "_TIMEOUT_S", 0.5)
    hang = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(RunError, match=r"^job did not end within 0.5 s$"):
        whole_step.run_logged([sys.executable, "-c", hang], log)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def write_wheel(folder: Path, name: str) -> None:
    """A package with nothing in it."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_an_environment_is_made_once_and_again_when_it_was_interrupted(monkeypatch, tmp_path):
    write_wheel(tmp_path, "vipray_probe")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    cache = str(tmp_path / "cache")
    made = ensure_environment("probe", ["vipray_probe==1.0"], cache)
    assert made.versions["vipray_probe"] == "1.0"
    marker = made.python.parent / "marker"
    marker.touch()
    assert ensure_environment("probe", ["vipray_probe==1.0"], cache) == made and marker.exists()
    (environment_folder("probe", ["vipray_probe==1.0"], cache) / STAMP).unlink()
    assert ensure_environment("probe", ["vipray_probe==1.0"], cache) == made and not marker.exists()
    probe = "import vipray_probe, sys; print(sys.prefix)"
    prefix = subprocess.run([made.python, "-P", "-c", probe], capture_output=True, text=True, check=True).stdout
    assert Path(prefix.strip()) == made.python.parents[1]


def test_what_cannot_be_installed_is_told_in_one_line(monkeypatch, tmp_path):
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    with pytest.raises(InstallationError, match=r"^No matching distribution found for vipray-probe==2.0$"):
        ensure_environment("probe", ["vipray-probe==2.0"], str(tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob(f"*/{STAMP}"))


def test_trl_trains_on_the_task(tiny_model, tmp_path):
    from transformers import AutoTokenizer

    folder = environment_folder(f"trl-{whole_step.TRL_VERSION}", whole_step.trl_requirements())
    if not (folder / STAMP).is_file():
        pytest.skip(f"`python -m jobs.bench learner` has not installed TRL to {folder} yet")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    run = fake_run(tmp_path / "run")
    config = load_config(
        DEMO, [*whole_step.settings_of(SIZE, "fp32"), "allocation.lower=2", f"model.path={tiny_model}"]
    )
    task = whole_step.trl_task(config, SIZE, run, threads=1)
    with pytest.raises(RunError, match="ValueError: the chat template gives other tokens"):
        whole_step._train_with_trl(task, tmp_path, whole_step.CACHE_DIR)
    for prompt in task["prompts"]:
        ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
        prompt["token_ids"] = list(ids)
    found = whole_step._train_with_trl(task, tmp_path, whole_step.CACHE_DIR)
    assert len(found["step_s"]) == len(found["log"]) == SIZE.steps and min(found["step_s"]) > 0
    assert found["versions"]["trl"] == whole_step.TRL_VERSION
    assert all(entry["completions/max_length"] <= SIZE.max_tokens for entry in found["log"])
