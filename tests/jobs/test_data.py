"""`vipray data`: what would be trained on, and bad input in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs.cli import main
from jobs.prompts import ChatTokenizer
from tests.jobs.support import DEMO, ROOT
from vipray.data.chat import Message

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]


def verl(index, text, gold):
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": text}] if isinstance(text, str) else text,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": index},
    }


@pytest.fixture
def config(tmp_path, tiny_model):
    """Write a configuration over a data file, and the file."""

    def write(rows, name="train.parquet", **settings):
        path = tmp_path / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = {
            "model": {"path": str(tiny_model)},
            "predictor": {"embedding_model": "elsewhere"},
            "data": {"files": {"train": {"path": str(path)} | settings}, "max_prompt_tokens": 60},
        }
        file = tmp_path / "small.yaml"
        file.write_text(yaml.safe_dump(values))
        return str(file)

    return write


def rows():
    texts = ["What is 1 + 1?", "What is 1 + 1?", "What is 3 + 4? " * 9, CHAT, " ", "What is 5 + 5?"]
    return [verl(index, text, f"{index:03d}") for index, text in zip([7, 7, 1, 2, 3, 4], texts, strict=True)]


def test_counts_lengths_examples_and_success(config, tmp_path, capsys):
    log = tmp_path / "rates.json"
    log.write_text(json.dumps({"7": [0.5, 1.0], "2": [0.0, 0.0]}))
    out = tmp_path / "figures.json"
    assert main(["data", config(rows()), "--log", str(log), "--trials", "4", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    summary = "3 prompts (6 read, 1 exact duplicates removed, 1 over the length limit dropped, 1 with an empty prompt"
    assert summary in shown and "train.parquet row 5" in shown
    assert "train/7 (32 tokens, math)\nuser: What is 1 + 1?\nassistant: " in shown and "→ answer '007'" in shown
    figures = json.loads(out.read_text())
    (source,) = figures["sources"]
    assert source == {"label": "train", "read": 6, "kept": 3, "dropped": {"duplicate": 1, "too_long": 1, "empty": 1}}
    lengths = {"median": 32, "90 %": 50, "99 %": 50, "longest": 50}
    assert figures["tasks"] == [{"task": "sums", "verifier": "math", "prompts": 3, "tokens": lengths}]
    assert figures["verifiers"] == {"math": 3} and len(figures["fingerprint"]) == 64
    (success,) = figures["success"]["tasks"]
    assert (success["num_seen"], success["mean"], success["never"]) == (2, 0.375, 0.5)


def test_roles_are_kept_and_other_prompts_get_the_system_prompt(config, capsys):
    path = config(rows())
    assert main(["data", path, "--examples", "9", "data.system_prompt=Think."]) == 0
    shown = capsys.readouterr().out
    assert "system: Be brief.\nuser: What is 2 + 2?\nassistant: " in shown
    assert "system: Think.\nuser: What is 1 + 1?\nassistant: " in shown


def test_answers_that_cannot_be_graded_are_dropped_and_shown(config, capsys):
    path = config([verl(0, "a", "7"), verl(1, "b", "notfound"), verl(2, "c", r"\frac{1}{2}")])
    assert main(["data", path]) == 0
    shown = capsys.readouterr().out
    assert "2 prompts (3 read" in shown and "cannot be graded: " in shown and "row 2 ('notfound': " in shown
    assert main(["data", path, "data.bad_rows.ungradable_answer=refuse"]) == 2
    assert "train.parquet row 2 ('notfound'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "arguments", "words"),
    [
        (rows(), ["data.files.train.verifier=best"], "data.files.train.verifier must be one of"),
        (rows(), ["data.files.train.format=csv"], "data.files.train.format must be one of auto, verl, gsm8k, columns"),
        (rows(), ["data.files.train.path=/no/file"], "data.files.train.path=/no/file does not exist"),
        (rows(), ["data.files.train.colums.prompt=x"], "unknown config key data.files.train.colums"),
        (rows(), ["data.max_prompt_tokens=9"], "no prompt is within data.max_prompt_tokens=9"),
        (rows(), ["--log", "/no/log.json"], "/no/log.json cannot be read"),
        (rows(), ["--examples=-1"], "--examples must be >= 0, got -1"),
        (rows(), ["--json", "/no/folder/x.json"], "/no/folder/x.json cannot be written"),
        ([*rows(), verl(9, "x", "")], [], "train.jsonl row 7 is a row without an answer"),
        ([*rows(), {"prompt": "x"}], [], "train.jsonl row 7 has no reward_model"),
        ([{"text": "x"}], [], "train.jsonl row 1 is neither in the schema of verl"),
    ],
)
def test_bad_input_is_one_line_and_status_2(config, capsys, rows, arguments, words):
    assert main(["data", config(rows, "train.jsonl"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vipray: error: ") and error.count("\n") == 1 and words in error, error


def test_a_file_that_is_no_data_is_named(config, tmp_path, capsys):
    path = config(rows())
    (tmp_path / "train.parquet").write_bytes(b"\x00\x01\x02\xff" * 40)
    assert main(["data", path]) == 2
    assert "train.parquet cannot be read as Parquet" in capsys.readouterr().err
    for content in (b"\x00\xff\n", b"a,b\n1,2\n"):
        (tmp_path / "train.csv").write_bytes(content)
        assert main(["data", path, f"data.files.train.path={tmp_path}/train.csv"]) == 2
        assert "train.csv row 1 is not" in capsys.readouterr().err


def test_training_refuses_more_prompts_a_batch_than_are_left(config, capsys):
    path = config(rows())
    settings = ["allocation.prompts_per_batch=4", "allocation.rollout_budget=32", f"predictor.embedding_model={ROOT}"]
    assert main(["train", path, *settings]) == 2
    error = capsys.readouterr().err
    assert "allocation.prompts_per_batch=4 is more than the 3 prompts that are left" in error and "6 read" in error


def test_the_demo_is_shown_without_ray(tmp_path):
    code = (
        "import sys; from jobs.cli import main\n"
        f"assert main(['data', {str(DEMO)!r}, '--examples', '0']) == 0\n"
        "print('loaded:', sorted({'ray', 'vllm'} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "loaded: []" in result.stderr, result.stderr
    assert "62 prompts (64 read, 2 exact duplicates removed)" in result.stdout


def test_a_dry_run_over_files_loads_no_tokenizer_and_no_grader(config):
    code = (
        "import sys; from jobs.cli import main\n"
        f"assert main(['train', {config(rows())!r}, '--dry-run', 'predictor.embedding_model={ROOT}']) == 0\n"
        "heavy = {'ray', 'torch', 'vllm', 'transformers', 'sympy', 'reasoning_gym'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "loaded: []" in result.stderr, result.stderr
    assert "4 prompts" in result.stdout  # none is over a limit of tokens where nothing is tokenised


def test_tokens_are_those_of_the_tokenizers_own_chat_template(tiny_model):
    tokenizer = ChatTokenizer.of_folder(tiny_model, "tiny")
    talks = [(Message("user", "2+2?"),), (Message("system", "é\n"), Message("user", " <eos> 3"))]
    own = [
        tokenizer.tokenizer.apply_chat_template(
            [message._asdict() for message in talk], add_generation_prompt=True, return_dict=False
        )
        for talk in talks
    ]
    assert tokenizer(talks) == own and tokenizer([]) == []
    assert tokenizer.text(own[0]) == "user: 2+2?\nassistant: "
