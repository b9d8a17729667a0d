"""`vipray verify`: lines in, lines out, in order; bad input is one line and exit status 2."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from jobs.cli import main
from tests.jobs.support import ROOT, environment
from vipray.verifiers.build import VERIFIERS

FUNCTION = """
import os, time

def check(completion, gold):
    if completion == "hang":
        while True: pass
    if completion == "crash":
        os._exit(1)
    print("noise")
    return float(completion == gold)
"""


@pytest.fixture
def write(tmp_path):
    def to(*lines: str) -> str:
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return str(path)

    return to


def verify(path: str, *args: str, verifier: str = "exact") -> int:
    return main(["verify", "--verifier", verifier, "--input", path, "--workers", "1", *args])


def refuse(capfd, path: str, *args: str, verifier: str = "exact") -> str:
    """Run the command, expect status 2, nothing on stdout and one line on stderr, and return the line."""
    assert verify(path, *args, verifier=verifier) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("vipray: error: ") and err.count("\n") == 1, (out, err)
    return err


def test_lines_come_back_in_order_with_four_keys_added(write, capfd):
    lines = [json.dumps({"answer": str(n), "gold": str(n % 7), "n": n}) for n in range(500)]
    assert verify(write(*lines), "--workers", "2") == 0
    out, _ = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["n"] for row in rows] == list(range(500))
    assert [row["reward"] for row in rows] == [float(n < 7) for n in range(500)]
    assert {tuple(row) for row in rows} == {("answer", "gold", "n", "reward", "outcome", "extracted", "reason")}
    assert {row["outcome"] for row in rows} == {"correct", "wrong"}


def test_numbers_keep_their_digits_and_other_keys_pass_through(write, capfd):
    line = (
        '{"answer": "007", "gold": 0.10, "id": 123456789012345678901234567890, "x": [1e400, 0.10, {"é": null}], '
        '"reward": 9, "reason": "old"}'
    )
    assert verify(write(line, "", '{"answer": "100000000000000000001", "gold": 100000000000000000000}')) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert '"gold": 0.10, "id": 123456789012345678901234567890, "x": [1e400, 0.10, {"\\u00e9": null}]' in first
    assert json.loads(first)["reward"] == 0.0 and first.count('"reward"') == first.count('"reason"') == 1
    assert json.loads(second)["outcome"] == "wrong"


def test_real_verifiers_score_their_forms(write, capfd):
    rows = [
        ("math", "So \\boxed{\\frac{1}{2}}.", "0.5", 1.0),
        ("math", "So \\boxed{\\frac{1}{3}}.", "0.5", 0.0),
        ("gsm8k", "2 + 2 = 4\n#### 4", 4, 1.0),
        ("multiple_choice", "The answer is (B).", "B", 1.0),
    ]
    for verifier, answer, gold, reward in rows:
        assert verify(write(json.dumps({"answer": answer, "gold": gold})), verifier=verifier) == 0
        assert json.loads(capfd.readouterr().out)["reward"] == reward, answer


def test_a_function_that_hangs_or_crashes_costs_its_own_line(write, capfd, tmp_path, monkeypatch):
    (tmp_path / "checks.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    answers = ["80", "hang", "80", "crash", "81"]
    path = write(*(json.dumps({"answer": answer, "gold": "80"}) for answer in answers))
    assert verify(path, "--function", "checks:check", "--timeout-s", "3", verifier="function") == 0
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["outcome"] for row in rows] == ["correct", "timeout", "correct", "error", "wrong"]
    assert rows[1]["reason"] == "no verdict within 3 s" and "ended with status 1" in rows[3]["reason"]
    assert "noise" in err and "noise" not in out


def test_stdin_is_read(capfd, monkeypatch):
    result = subprocess.run(
        [sys.executable, "-m", "jobs.verify", "--verifier", "exact", "--input", "-", "--workers", "1"],
        input='{"answer": "a", "gold": "a"}\n', cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0 and json.loads(result.stdout)["reward"] == 1.0, result.stderr


GOOD = '{"answer": "a", "gold": "a"}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: must be an object with an answer and a gold, found a list"),
        ('"text"', "line 2: must be an object with an answer and a gold, found a string"),
        ('{"gold": "a"}', "line 2: lacks the key 'answer'"),
        ('{"answer": "a"}', "line 2: lacks the key 'gold'"),
        ('{"answer": null, "gold": "a"}', "line 2: 'answer' must be a string, found null"),
        ('{"answer": "a", "gold": null}', "line 2: 'gold' must be a string or a number, found null"),
        ('{"answer": "a", "gold": true}', "line 2: 'gold' must be a string or a number, found a boolean"),
        ('{"answer": "a", "gold": ["a"]}', "line 2: 'gold' must be a string or a number, found a list"),
        ('{"answer": "a", "gold": "a", "aliases": "b"}', "line 2: 'aliases' must be a list"),
        ('{"answer": ' + "[" * 100_000, "line 2: nested too deeply"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(write, capfd, line, words):
    path = write(GOOD, line, GOOD)
    assert f"{path}, {words}" in refuse(capfd, path)


@pytest.mark.parametrize(
    ("args", "verifier", "words"),
    [
        ((), "maths", "--verifier must be one of exact, function, gsm8k"),
        ((), "reasoning_gym", "--verifier must be one of"),
        (("--workers", "0"), "exact", "--workers must be >= 1, got 0"),
        (("--timeout-s", "nan"), "exact", "--timeout-s must be > 0 and finite, got nan"),
        (("--timeout-s", "-1"), "exact", "--timeout-s must be > 0 and finite, got -1"),
        (("--memory-mib", "0"), "exact", "--memory-mib must be >= 1, got 0"),
        (("--function", "a:b"), "exact", "--function MODULE:CALLABLE belongs to --verifier function"),
        ((), "function", "--function MODULE:CALLABLE belongs to --verifier function"),
        (("--function", "no_such_module:f"), "function", "no_such_module"),
    ],
)
def test_bad_options_are_one_line(write, capfd, args, verifier, words):
    assert words in refuse(capfd, write(GOOD), *args, verifier=verifier)


def test_files_that_cannot_be_read_are_named(capfd, tmp_path, write):
    assert f"--input {tmp_path}/none cannot be read: No such file" in refuse(capfd, f"{tmp_path}/none")
    assert "cannot be read: Is a directory" in refuse(capfd, str(tmp_path))
    path = write(GOOD)
    with open(path, "ab") as file:
        file.write(b'{"answer": "\xff"}\n')
    assert "not UTF-8 text" in refuse(capfd, path)


def test_a_reader_that_has_seen_enough_is_no_error(write):
    path = write(*[json.dumps({"answer": "x" * 2000, "gold": "y"})] * 2000)
    command = [sys.executable, "-m", "jobs.verify", "--verifier", "exact", "--input", path, "--workers", "1"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert isinstance(process.stdout, io.TextIOWrapper) and process.stderr is not None
    assert json.loads(process.stdout.readline())["reward"] == 0.0
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == 0


def test_every_verifier_that_needs_no_run_can_be_named(capfd):
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    text = capfd.readouterr().out
    assert all(name in text for name in VERIFIERS if name != "reasoning_gym")
    assert "reasoning_gym" not in text


def test_aliases_are_for_verifiers_that_take_them(write, capfd):
    path = write('{"answer": "b", "gold": "a", "aliases": ["b"]}')
    assert verify(path, verifier="qa") == 0
    assert json.loads(capfd.readouterr().out)["reward"] == 1.0
    for verifier in ("math", "exact", "gsm8k", "multiple_choice"):
        assert f"line 1: verifier {verifier} takes one gold" in refuse(capfd, path, verifier=verifier)


def test_python_tests_run_below_a_worker(write, capfd):
    gold = json.dumps({"asserts": ["assert f(2) == 4"]})
    good, bad = ("```python\ndef f(x): return x * 2\n```", "```python\ndef f(x): return x * 3\n```")
    path = write(*(json.dumps({"answer": answer, "gold": gold}) for answer in (good, bad)))
    status = verify(path, verifier="python_tests")
    out, err = capfd.readouterr()
    if status == 2 and "does not permit" in err:
        pytest.skip(err)
    assert [json.loads(line)["reward"] for line in out.splitlines()] == [1.0, 0.0], err
