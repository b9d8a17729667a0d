from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from vipray.evaluation.pass_rate_log import read_log
from vipray.evaluation.synthetic_log import (
    NUM_LEVELS,
    REASONING_GYM_MIX,
    captured_share,
    labelled_prompts,
    reasoning_gym_prompts,
    synthetic_log,
    write_synthetic_log,
)

PROMPTS = labelled_prompts(num_tasks=6, num_per_level=25)


def captured(p, predicted):
    return captured_share(p, predicted, budget_per_prompt=8, lower=3, upper=32, estimator="rloo")


def point(p):
    return p, 4 * p * (1 - p)


def test_observed_rates_match_the_truth_within_the_binomial_bound():
    trials = 400
    log = synthetic_log(PROMPTS, epochs=5, trials=trials, seed=1)
    p = log.success_prob
    z = (log.successes - trials * p) / np.sqrt(trials * p * (1 - p))
    assert abs(z.mean()) < 4 / np.sqrt(z.size) and z.std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * z.size))
    bound = np.sqrt(np.log(2 * p.size / 1e-6) / (2 * trials))  # Hoeffding, all at once, fails once in a million
    assert np.abs(log.successes / trials - p).max() < bound


def test_success_rises_with_training_or_stays_and_falls_with_the_level():
    log = synthetic_log(PROMPTS, epochs=6, trials=8, seed=2)
    rise = log.success_prob[-1] - log.success_prob[0]
    assert (np.diff(log.success_prob, axis=0) >= 0).all()
    assert (rise == 0).mean() == pytest.approx(0.2, abs=0.06) and rise.max() > 0.1
    tasks = np.array(PROMPTS.tasks)
    for task in np.unique(tasks):
        of_level = [log.success_prob[0][(tasks == task) & (PROMPTS.levels == level)].mean() for level in range(4)]
        assert of_level == sorted(of_level, reverse=True)


def test_without_a_spread_of_their_own_type_and_level_alone_decide():
    log = synthetic_log(PROMPTS, epochs=1, trials=8, seed=2, own_spread=0.0)
    cells = set(zip(PROMPTS.tasks, PROMPTS.levels.tolist(), log.success_prob[0].tolist(), strict=True))
    assert len(cells) == 6 * NUM_LEVELS


def test_a_seed_repeats_exactly_and_another_does_not():
    first, again, other = (synthetic_log(PROMPTS, epochs=2, trials=8, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.successes, again.successes) and np.array_equal(first.success_prob, again.success_prob)
    assert not np.array_equal(first.success_prob, other.success_prob)


def test_the_files_are_read_back_as_the_log(tmp_path):
    prompts = reasoning_gym_prompts(num_tasks=3, num_per_level=2, seed=0)
    log = synthetic_log(prompts, epochs=3, trials=8, seed=0)
    path, texts, truth = write_synthetic_log(log, tmp_path / "log.json")
    assert [f.name for f in (path, texts, truth)] == ["log.json", "log.prompts.parquet", "log.truth.parquet"]
    read, expected = read_log(path, trials=8, prompts=texts), log.as_log()
    assert (read.prompt_ids, read.texts, read.tasks) == (expected.prompt_ids, expected.texts, expected.tasks)
    for mine, theirs in zip(read.steps, expected.steps, strict=True):
        assert np.array_equal(mine.rows, theirs.rows) and np.array_equal(mine.successes, theirs.successes)
    assert pq.read_table(texts).column_names == ["prompt_id", "task", "text"]
    rows = pq.read_table(truth).to_pylist()
    assert np.array_equal(np.array([row["success_prob"] for row in rows]).T, log.success_prob)
    assert [row["level"] for row in rows] == prompts.levels.tolist()


def test_labels_alone_need_no_texts(tmp_path):
    log = synthetic_log(PROMPTS, epochs=1, trials=8, seed=0)
    assert [path.name for path in write_synthetic_log(log, tmp_path / "a.json")] == ["a.json", "a.truth.parquet"]
    assert set(json.loads((tmp_path / "a.json").read_text())) == set(PROMPTS.prompt_ids)


def test_the_mix_has_ten_types_or_more_at_four_levels_each():
    assert len(REASONING_GYM_MIX) >= 10
    assert {len(levels) for levels in REASONING_GYM_MIX.values()} == {NUM_LEVELS}
    prompts = reasoning_gym_prompts(len(REASONING_GYM_MIX), num_per_level=3, seed=0)
    assert len(set(prompts.prompt_ids)) == len(prompts.prompt_ids) == len(REASONING_GYM_MIX) * NUM_LEVELS * 3
    assert prompts.texts is not None and len(set(prompts.texts)) > 0.9 * len(prompts.texts)


def test_the_truth_captures_all_of_the_gain_and_a_constant_none():
    p = np.random.default_rng(0).beta(0.5, 0.5, size=40)
    assert captured(p, point(p)) == 1.0
    assert captured(p, point(np.full(40, 0.3))) == 0.0
    assert captured(p, (p, 1 - 4 * p * (1 - p))) < 0.0


def test_the_captured_share_is_that_of_the_counts_by_hand():
    p = np.array([0.5, 0.1])  # p (1 - p) = 0.25, 0.09; true counts 10 and 6, predicted ones 6 and 10
    uniform, best = 0.25 / 7 + 0.09 / 7, 0.25 / 9 + 0.09 / 5
    got = 0.25 / 5 + 0.09 / 9
    assert captured(p, point(p[::-1])) == pytest.approx((uniform - got) / (uniform - best))
