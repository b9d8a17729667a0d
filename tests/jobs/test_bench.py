"""The benchmarks at a tiny size: what they report, not how fast anything is."""

from __future__ import annotations

import doctest
import json
import os

import numpy as np
import pytest

from jobs.bench import allocation, command, predictor, results
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


def test_a_target_says_whether_it_is_met():
    assert str(Target("x", 0.3, 0.2)) == "target x within 300 ms: 200 ms, met"
    assert str(Target("x", 3e9, 3.5e9, "bytes")) == "target x within 3 GB: 3.5 GB, missed"
    assert quantity(1e-9, "s") == "0.001 µs"
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

    def predict(qs):
        sizes.append(qs)
        return found

    monkeypatch.setattr(allocation, "benchmark", lambda: found)
    monkeypatch.setattr(predictor, "benchmark", predict)
    assert command.main(["--json", str(tmp_path / "bench.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("2.50") == 2 and out.count("target t within 1 s: 2 s, missed") == 2
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["allocation"]["comparisons"][0]["ratio"] == 2.5
    assert written["predictor"]["targets"] == [{"what": "t", "limit": 1.0, "measured": 2.0, "unit": "s", "met": False}]
    assert command.main(["predictor", "--large"]) == 0
    assert sizes == [[17_000], [17_000, 1_000_000]]
    assert capsys.readouterr().out.count("Title") == 1
    assert command.main(["prediction"]) == 2
    assert "'prediction' is not one of allocation, predictor" in capsys.readouterr().err
