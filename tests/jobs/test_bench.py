"""The benchmarks at a tiny size: what they report, not how fast anything is."""

from __future__ import annotations

import doctest
import json
import os
from pathlib import Path

import numpy as np
import pytest

from jobs.bench import allocation, command, learner, pipeline, predictor, results, verifiers
from jobs.bench.measure import in_child
from jobs.bench.results import Benchmark, Comparison, Target, quantity
from vipray.predictors.paper_gp import PaperGP

TINY_PROMPTS, TINY_DIMENSIONS = 40, 4


@pytest.fixture(scope="module")
def allocation_result():
    return allocation.benchmark([(8, 64)], [(4, 32)])


@pytest.fixture(scope="module")
def predictor_result():
    return predictor.benchmark([TINY_PROMPTS], num_dimensions=TINY_DIMENSIONS)


def check_ratios(result: Benchmark) -> None:
    for row, written in zip(result.comparisons, result.as_json()["comparisons"], strict=True):
        assert row.ours > 0 and row.theirs is not None and row.theirs > 0
        assert written["ratio"] == row.ratio == row.theirs / row.ours


def test_allocation_is_measured_beside_both_relaxed_solvers(allocation_result):
    rows = {(row.what, row.alternative) for row in allocation_result.comparisons}
    assert rows == {
        ("allocate B=4, C=32", "relaxed, by SLSQP"),
        ("allocate B=8, C=64", "relaxed, by bisection, rounded"),
    }
    check_ratios(allocation_result)
    assert not allocation_result.targets  # they are for the sizes that matter


def test_a_solver_that_does_not_end_in_time_has_no_ratio():
    result = allocation.benchmark([], [(4, 32)], slsqp_timeout_s=1e-3)
    assert result.comparisons[0].theirs is None and result.comparisons[0].ratio is None
    assert "not finished" in result.comparisons[0].note
    assert result.table().row_count == 1


def test_each_predictor_is_measured_beside_the_cached_kernel(predictor_result):
    parts = ("predict and observe", "start, predict and observe", "memory above the embeddings")
    expected = [f"{kind}, Q={TINY_PROMPTS}: {part}" for kind in ("paper_gp", "hybrid") for part in parts]
    assert [row.what for row in predictor_result.comparisons] == expected
    assert [row.unit for row in predictor_result.comparisons] == ["s", "s", "bytes"] * 2
    check_ratios(predictor_result)
    steps, starts = predictor_result.comparisons[0::3], predictor_result.comparisons[1::3]
    assert all(start.ours > step.ours for step, start in zip(steps, starts, strict=True))
    assert predictor_result.table().row_count == len(expected)


def test_where_the_kernel_matrix_is_too_large_there_is_no_alternative():
    result = predictor.benchmark([TINY_PROMPTS], compare_up_to=TINY_PROMPTS - 1, num_dimensions=TINY_DIMENSIONS)
    assert all(row.theirs is None and row.ratio is None and not row.paper for row in result.comparisons)


def test_the_cached_kernel_does_the_same_work():
    x = predictor.random_embeddings(TINY_PROMPTS, TINY_DIMENSIONS)
    assert np.linalg.norm(x, axis=1) == pytest.approx(1.0, rel=1e-6)
    ids = [str(q) for q in range(TINY_PROMPTS)]
    exact = PaperGP(ids, x.astype(np.float64), clip=0.05, jitter=1e-3, bandwidth=1.0)
    cached = predictor.CachedKernelGP(ids, x, bandwidth=1.0)
    for gp in (exact, cached):
        gp.observe(ids[:10], np.arange(10) % 9, np.full(10, 8))
    assert cached.predict(ids)[0] == pytest.approx(exact.predict(ids)[0], abs=1e-2)  # float32 against a jitter of 1e-3


def test_verification_is_measured_beside_math_verify_and_hangs_are_counted():
    result = verifiers.benchmark(num_gsm8k=40, num_mixed=20, hang_timeout_s=1.0)
    *beside, hangs = result.comparisons
    assert [row.what for row in beside] == ["40 GSM8K answers (made-up)", "20 mixed answers (made-up)"]
    assert all(row.ours > 0 and row.theirs is not None and row.theirs > 0 for row in beside)
    assert hangs.note.startswith("3 timeouts, 0 outcomes not as they should be, 4 workers alive afterwards, ")
    assert [target.at_least for target in result.targets] == [True, True, False, False]
    json.dumps(result.as_json())


def test_a_folder_without_the_answers_is_refused(tmp_path, capsys):
    assert command.main(["verifiers", "--data", str(tmp_path)]) == 2
    assert f"--data {tmp_path} lacks the file gsm8k/" in capsys.readouterr().err


def test_the_pipeline_is_measured_beside_static_splitting_and_synchronous_steps():
    result = pipeline.benchmark((2,), utilisation_steps=3, num_seeds=2)
    *makespans, staleness = result.comparisons
    assert [row.alternative for row in makespans] == ["whole groups, fixed at the start", "equal contiguous shares"] * 2
    assert staleness.alternative == "staleness 0"
    assert all(row.unit == "times" and row.ours >= 1.0 and row.theirs is not None for row in makespans)
    assert len(result.targets) == 4 and all(target.measured > 0 for target in result.targets)
    written = json.loads(json.dumps(result.as_json()))
    assert written["details"]["longest over median"]["2"] <= 25.0


def test_a_target_says_whether_it_is_met():
    assert str(Target("x", 0.3, 0.2)) == "target x within 300 ms: 200 ms, met"
    assert str(Target("x", 3e9, 3.5e9, "bytes")) == "target x within 3 GB: 3.5 GB, missed"
    assert str(Target("x", 4.0, 4.0, "times", at_least=True)) == "target x at least 4 times: 4 times, met"
    rate = Target("x", 1000.0, 999.0, "per_s", at_least=True)
    assert str(rate) == "target x at least 1,000 a second: 999 a second, missed"
    assert quantity(1e-9, "s") == "0.001 µs"
    assert str(Target("x", 0.95, 0.5, "share", at_least=True)) == "target x at least 95 %: 50 %, missed"
    assert doctest.testmod(results).failed == 0


def cores_and_threads() -> list[object]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return [cores, os.environ["OPENBLAS_NUM_THREADS"]]


def test_a_child_is_limited_and_its_failure_is_told():
    assert in_child(cores_and_threads, cores=1) == [1, "1"]
    with pytest.raises(RuntimeError, match=r"fail_to_measure\(.*failed with status 1: KeyError: 'no such kind'"):
        in_child(fail_to_measure, cores=1)


def fail_to_measure() -> None:
    raise KeyError("no such kind")


def test_the_command_prints_tables_and_targets_and_writes_json(monkeypatch, tmp_path, capsys):
    found = Benchmark("Title", (Comparison("a", 2.0, "b", 5.0),), (Target("t", 1.0, 2.0),))
    sizes: list[list[int]] = []
    thoroughness: list[bool] = []
    folders: list[Path | None] = []
    generators: list[tuple[int, ...]] = []

    def predict(qs):
        sizes.append(qs)
        return found

    def learn(*, thorough):
        thoroughness.append(thorough)
        return found

    def judge(data):
        folders.append(data)
        return found

    def simulate(counts):
        generators.append(counts)
        return found

    monkeypatch.setattr(allocation, "benchmark", lambda: found)
    monkeypatch.setattr(learner, "benchmark", learn)
    monkeypatch.setattr(predictor, "benchmark", predict)
    monkeypatch.setattr(verifiers, "benchmark", judge)
    monkeypatch.setattr(pipeline, "benchmark", simulate)
    assert command.main(["--json", str(tmp_path / "bench.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("2.50") == 5 and out.count("target t within 1 s: 2 s, missed") == 5
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["allocation"]["comparisons"][0]["ratio"] == 2.5
    target = {"what": "t", "limit": 1.0, "measured": 2.0, "unit": "s", "at_least": False, "met": False}
    assert written["predictor"]["targets"] == [target]
    assert command.main(["predictor", "--large"]) == 0
    assert sizes == [[17_000], [17_000, 1_000_000]]
    assert capsys.readouterr().out.count("Title") == 1
    assert command.main(["learner"]) == 0
    assert thoroughness == [False, True]  # by itself it may take longer
    assert command.main(["verifiers", "--data", str(tmp_path)]) == 0
    assert folders == [None, tmp_path]
    assert command.main(["pipeline"]) == 0
    assert generators == [(64,), (64, 512)]
    assert command.main(["prediction"]) == 2
    assert "'prediction' is not one of allocation, predictor" in capsys.readouterr().err
