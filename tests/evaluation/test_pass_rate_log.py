from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vipray.errors import ConfigError
from vipray.evaluation.pass_rate_log import read_log, sample_log


@pytest.fixture
def log_file(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"7": [0.0, 0.5, 1.0], "3": [0.25]}))
    return path


def test_rates_become_counts_visit_by_visit(log_file):
    log = read_log(log_file, trials=4)
    assert log.prompt_ids == ("7", "3")
    assert [(v.rows.tolist(), v.successes.tolist(), v.trials.tolist()) for v in log.steps] == [
        ([0, 1], [0, 1], [4, 4]),
        ([0], [2], [4]),
        ([0], [4], [4]),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": [1.5]}', "prompt a, visit 0: rate 1.5"),
        ('{"a": [0.5, -0.25]}', "prompt a, visit 1: rate -0.25"),
        ('{"a": [0.3]}', "rate 0.3 is not a multiple of 1/4"),
        ('{"a": [NaN]}', "visit 0"),
        ("[1]", "must map prompt ids"),
        ("{}", "must map prompt ids"),
        ("{", "not JSON"),
    ],
)
def test_logs_that_cannot_be_are_refused(tmp_path, content, words):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_log(path, trials=4)


def test_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither"):
        read_log(tmp_path / "log.csv", trials=4)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_log(tmp_path / "nowhere.json", trials=4)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ConfigError, match=r"no columns \['prompt_id'"):
        read_log(tmp_path / "other.parquet", trials=4)


def test_a_runs_allocations_are_a_log(tmp_path):
    rows = [
        {"step": 1, "prompt_id": "b", "task": "t2", "successes": 1, "trials": 3},
        {"step": 0, "prompt_id": "a", "task": "t1", "successes": 2, "trials": 4},
        {"step": 1, "prompt_id": "a", "task": "t1", "successes": 0, "trials": 1},  # one trial tells no variance
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "allocations.parquet")
    log = read_log(tmp_path / "allocations.parquet", trials=8)
    assert log.prompt_ids == ("b", "a") and log.tasks == ("t2", "t1")
    assert [(v.rows.tolist(), v.successes.tolist()) for v in log.steps] == [([1], [2]), ([0], [1])]


def test_texts_come_from_either_kind_of_prompt_file(tmp_path, log_file):
    pq.write_table(pa.table({"prompt_id": ["3", "7"], "text": ["three", "seven"]}), tmp_path / "ours.parquet")
    assert read_log(log_file, trials=4, prompts=tmp_path / "ours.parquet").texts == ("seven", "three")
    chat = [{"prompt": [{"role": "user", "content": str(i)}], "extra_info": {"index": i}} for i in (7, 3)]
    pq.write_table(pa.Table.from_pylist(chat), tmp_path / "chat.parquet")
    assert read_log(log_file, trials=4, prompts=tmp_path / "chat.parquet").texts == ("7", "3")
    pq.write_table(pa.table({"prompt_id": ["3"], "text": ["three"]}), tmp_path / "half.parquet")
    with pytest.raises(ConfigError, match="no text for 1 prompts of the log, the first is '7'"):
        read_log(log_file, trials=4, prompts=tmp_path / "half.parquet")


def test_sampled_logs_visit_everyone_once_an_epoch_with_the_given_rates():
    p = np.linspace(0, 1, 50)
    log = sample_log([str(q) for q in range(50)], [p] * 40, batch_size=20, trials=8, seed=0)
    visits = np.concatenate([v.rows for v in log.steps])
    assert np.bincount(visits).tolist() == [40] * 50
    wins = np.bincount(visits, weights=np.concatenate([v.successes for v in log.steps]))
    assert wins / 320 == pytest.approx(p, abs=0.1)
