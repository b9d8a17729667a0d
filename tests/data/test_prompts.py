from __future__ import annotations

import subprocess
import sys

import pytest

from vipray.config import TaskConfig
from vipray.data.prompts import Prompt, build_prompt_set
from vipray.data.tasks import open_task, read_tasks
from vipray.errors import ConfigError

SUMS = {"sums": TaskConfig("chain_sum", 40, 1, {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})}


def tokenize(text):
    return list(text.encode())


def prompt(index, text, answer="7"):
    return Prompt(f"t/{index}", "t", index, text, answer)


def test_duplicates_go_and_long_prompts_are_dropped_and_both_are_counted():
    prompts = [prompt(0, "ab"), prompt(1, "ab"), prompt(2, "abcdef"), prompt(3, "abc")]
    kept, report = build_prompt_set(prompts, tokenize, max_tokens=3)
    assert kept.prompt_ids == ["t/0", "t/3"]
    assert kept.token_ids("t/3") == list(b"abc")
    assert (report.num_read, report.num_duplicates, report.num_too_long, report.num_kept) == (4, 1, 1, 2)
    assert str(report) == "2 prompts (4 read, 1 exact duplicates removed, 1 over the length limit dropped)"


def test_answers_are_kept_as_strings_to_the_letter():
    kept, _ = build_prompt_set([prompt(0, "q", "034")], tokenize, 10)
    assert kept.prompt("t/0") == Prompt("t/0", "t", 0, "q", "034")


def test_nothing_to_train_on_is_an_error_that_says_why():
    with pytest.raises(ConfigError, match=r"data.max_prompt_tokens=2: the shortest of 2 has 3 tokens"):
        build_prompt_set([prompt(0, "abc"), prompt(1, "abcd")], tokenize, 2)
    with pytest.raises(ConfigError, match="empty: data"):
        build_prompt_set([], tokenize, 2)
    with pytest.raises(ConfigError, match="t/0 has an empty text or answer"):
        build_prompt_set([prompt(0, "abc", " ")], tokenize, 9)


def test_a_task_gives_the_same_prompts_again_with_ids_by_label():
    first, again = list(read_tasks(SUMS)), list(read_tasks(SUMS))
    assert first == again
    assert first[3].prompt_id == "sums/0003" and first[3].task == "sums" and first[3].index == 3
    terms = first[3].text.split(":")[1].removesuffix("=")
    assert str(eval(terms)) == first[3].answer


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TaskConfig("no_such_set", 3), "data.tasks.x.dataset='no_such_set'"),
        (TaskConfig("chain_sum", 3, 0, {"colour": 1}), "'colour': 1.*refused by chain_sum"),
        (TaskConfig("chain_sum", 3, 0, {"min_terms": 0}), "min_terms must be positive"),
    ],
)
def test_tasks_that_reasoning_gym_refuses_are_named(task, words):
    with pytest.raises(ConfigError, match=words):
        open_task("x", task)


def test_reasoning_gym_works_without_its_logic_solver():
    """Where no C compiler built pycosat, only the tasks that use it fail, and they say why."""
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pycosat' else find(name, *rest)\n"
        "from vipray.config import TaskConfig\n"
        "from vipray.data.tasks import read_tasks\n"
        "assert len(list(read_tasks({'sums': TaskConfig('chain_sum', 3)}))) == 3\n"
        "from vipray.errors import ConfigError\n"
        "try:\n"
        "    list(read_tasks({'zebra': TaskConfig('zebra_puzzles', 1)}))\n"
        "except ConfigError as error:\n"
        "    assert 'needs pycosat' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
