from __future__ import annotations

import subprocess
import sys

import pytest

from vipray.config import TaskConfig
from vipray.data.tasks import open_task, read_tasks
from vipray.errors import ConfigError

SUMS = {"sums": TaskConfig("chain_sum", 40, 1, {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})}


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
        (TaskConfig("chain_sum", 3, difficulty=99), "difficulty=99 is above the highest level of chain_sum, 10"),
        (TaskConfig("list_functions", 3, difficulty=0), "list_functions has no levels of difficulty"),
        (TaskConfig("caesar_cipher", 3, difficulty=2), "with difficulty=2 are refused by caesar_cipher"),
    ],
)
def test_tasks_that_reasoning_gym_refuses_are_named(task, words):
    with pytest.raises(ConfigError, match=words):
        open_task("x", task)


def test_a_difficulty_is_a_level_of_the_curriculum_alone_and_parameters_go_before_it():
    levels = [open_task("x", TaskConfig("chain_sum", 3, difficulty=level)).config for level in (0, 2)]
    assert [(c.min_terms, c.max_terms, c.min_digits, c.max_digits) for c in levels] == [(2, 2, 1, 1), (4, 4, 3, 3)]
    given = open_task("x", TaskConfig("chain_sum", 5, 9, {"max_terms": 6}, difficulty=2)).config
    assert (given.min_terms, given.max_terms, given.size, given.seed) == (4, 6, 5, 9)


def test_a_puzzle_without_one_right_answer_has_none():
    (prompt,) = read_tasks({"hour": TaskConfig("rush_hour", 1)})
    assert prompt.answer == ""


def test_an_entry_that_cannot_be_made_is_named():
    with pytest.raises(ConfigError, match=r"data\.tasks\.c: countdown cannot make entry \d+ .*change data\.tasks\.c"):
        list(read_tasks({"c": TaskConfig("countdown", 2, 1, difficulty=2)}))


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
