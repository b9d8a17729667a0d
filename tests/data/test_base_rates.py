from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.data.support import prompt_set
from vipray.data.base_rates import read_base_rates
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import ALLOCATION_SCHEMA
from vipray.run_log import write_table

PROMPTS, _ = prompt_set(
    [
        Prompt("a/1", "easy", 0, "q1", "1", "math"),
        Prompt("a/2", "easy", 1, "q2", "1", "math"),
        Prompt("b/3", "hard", 0, "q3", "1", "math"),
        Prompt("b/4", "hard", 1, "q4", "1", "math"),
    ]
)


def write(path, rates):
    path.write_text(json.dumps(rates))
    return path


def test_success_by_task_over_all_visits(tmp_path):
    log = write(tmp_path / "log.json", {"a/1": [1.0, 1.0], "a/2": [0.5, 0.25], "b/3": [0.0], "other": [0.5]})
    easy, hard, every = read_base_rates(log, PROMPTS, trials=4).tasks
    assert (easy.task, easy.num_prompts, easy.num_seen, easy.num_trials) == ("easy", 2, 2, 16)
    assert (easy.mean, easy.never, easy.always) == (pytest.approx((1.0 + 0.375) / 2), 0.0, 0.5)
    assert (hard.num_prompts, hard.num_seen, hard.mean, hard.never, hard.always) == (2, 1, 0.0, 1.0, 0.0)
    assert (every.task, every.num_prompts, every.num_seen) == ("all", 4, 3)
    assert every.mean == pytest.approx((1.0 + 0.375 + 0.0) / 3)


def test_ids_without_their_label_are_known_only_where_it_is_clear_whose_they_are(tmp_path):
    log = write(tmp_path / "log.json", {"1": [1.0], "3": [1.0]})
    with pytest.raises(ConfigError, match=r"log\.json knows none of the prompts: it calls them '1'.*--log LABEL=FILE"):
        read_base_rates(log, PROMPTS, trials=4)
    easy, hard, _ = read_base_rates(log, PROMPTS, trials=4, label="b").tasks
    assert (easy.num_seen, hard.num_seen, hard.mean) == (0, 1, 1.0)
    with pytest.raises(ConfigError, match="label 'c' is not one of a, b"):
        read_base_rates(log, PROMPTS, trials=4, label="c")
    alone, _ = prompt_set([Prompt("a/1", "t", 0, "q1", "1", "math"), Prompt("a/x", "t", 1, "q2", "1", "math")])
    (rates,) = read_base_rates(log, alone, trials=4).tasks
    assert (rates.num_prompts, rates.num_seen, rates.mean) == (2, 1, 1.0)


def test_an_earlier_run_is_read_from_its_folder(tmp_path):
    row = {"step": 0, "prompt_id": "a/2", "task": "easy", "success_prob": 0.5, "gradient_variance": 1.0}
    rows = [{**row, "prompt_weight": 1.0, "n": 8, "successes": 2, "trials": 8}]
    write_table(pa.Table.from_pylist(rows, schema=ALLOCATION_SCHEMA), tmp_path / "allocations.parquet")
    easy, hard, _ = read_base_rates(tmp_path, PROMPTS, trials=8).tasks
    assert (easy.num_seen, easy.mean, hard.num_seen) == (1, 0.25, 0)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"allocations\.parquet cannot be read"):
        read_base_rates(tmp_path, PROMPTS, trials=8)
