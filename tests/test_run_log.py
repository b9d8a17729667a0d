from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vipray.allocation.policies import POLICIES
from vipray.errors import ConfigError
from vipray.records import (
    ALLOCATION_SCHEMA,
    EVALUATION_SCHEMA,
    Allocation,
    Outcome,
    RolloutId,
    Span,
    TimelineSpan,
    Verdict,
)
from vipray.report.timeline import read_timeline
from vipray.run_log import RunLog, check_output_dir, write_table
from vipray.step_metrics import Planning, allocation_rows, count_evidence, reward_metrics

ALLOCATION = Allocation(
    step=4,
    prompt_ids=("a", "b"),
    n=np.array([2, 3]),
    prompt_weight=np.ones(2),
    success_prob=np.array([0.25, 0.5]),
    gradient_variance=np.array([0.75, 1.0]),
    span=Span(14.0, 14.5),
    shadow={"uniform": np.array([3, 2])},
)
TASK_OF = {"a": "easy", "b": "hard"}


def verdict(prompt_id, k, outcome, reward=0.0):
    return Verdict(RolloutId(4, prompt_id, k), reward, outcome, num_tokens=10, policy_version=4, span=Span(0.0, 0.0))


VERDICTS = [
    verdict("a", 0, Outcome.CORRECT, 1.0),
    verdict("a", 1, Outcome.WRONG),
    verdict("b", 0, Outcome.WRONG),
    verdict("b", 1, Outcome.TIMEOUT),
    verdict("b", 2, Outcome.ERROR),
]


def test_spans_grow_by_a_line_each_and_what_a_run_left_that_never_began_goes(tmp_path):
    spans = [
        TimelineSpan("learner", "learner", "train", 1.0, 2.0, step=0),
        TimelineSpan("g0", "generator", "load_weights", 2.0, 3.0, version=1),
    ]
    log = RunLog(tmp_path, "", pa.table({}))
    log.add_spans(spans[:1])
    log.add_spans(spans[1:])
    assert read_timeline(tmp_path / "timeline.jsonl") == tuple(spans)
    RunLog(tmp_path, "", pa.table({})).add_spans(spans[1:])
    assert read_timeline(tmp_path / "timeline.jsonl") == tuple(spans[1:])


def test_only_correct_and_wrong_are_evidence():
    successes, trials = count_evidence(("a", "b"), VERDICTS)
    assert (successes.tolist(), trials.tolist()) == ([1, 0], [2, 1])
    assert [outcome for outcome in Outcome if outcome.is_evidence] == [Outcome.CORRECT, Outcome.WRONG]


def test_rewards_by_task():
    assert reward_metrics(VERDICTS, TASK_OF) == {
        "reward/mean": 0.2,
        "reward/mean/easy": 0.5,
        "reward/mean/hard": 0.0,
        "rollouts/count": 5,
        "rollouts/tokens": 50,
    }


def test_planning_is_hidden_where_it_overlaps_with_training_and_exposed_elsewhere():
    spans = (Span(9.0, 11.0), Span(12.0, 12.5))  # one second of the first lies before training begins
    covers = [Span(13.0, 14.2), Span(10.0, 13.5)]  # they overlap, and nothing is hidden twice
    metrics = Planning(ALLOCATION, spans, wait_s=0.4).metrics(covers)
    assert metrics == pytest.approx(
        {
            "predictor/exposed_s": 1.0,
            "predictor/hidden_s": 1.5,
            "allocator/exposed_s": 0.3,
            "allocator/hidden_s": 0.2,
            "allocation/wait_s": 0.4,
        }
    )


def test_the_first_step_has_nothing_to_hide_behind():
    metrics = Planning(ALLOCATION, (Span(1.0, 2.0),), wait_s=1.0).metrics([])
    assert metrics["predictor/exposed_s"] == 1.0 and metrics["predictor/hidden_s"] == 0.0


def test_the_log_holds_what_it_was_told(tmp_path):
    log = RunLog(tmp_path / "run", "run: {}\n", pa.table({"prompt_id": ["a", "b"]}))
    rows = allocation_rows(ALLOCATION, np.array([1, 0]), np.array([2, 1]), TASK_OF)
    log.add_step({"step": 4, "reward/mean": 0.2, "learner/grad_norm": math.nan}, rows)
    log.add_step({"step": 5, "reward/mean": 0.3}, [])
    log.add_evaluation([{"step": 0, "prompt_id": "a", "task": "easy", "successes": 1, "trials": 8}])
    lines = [json.loads(line) for line in (log.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"step": 4, "reward/mean": 0.2, "learner/grad_norm": None},
        {"step": 5, "reward/mean": 0.3},
    ]
    table = pq.read_table(log.folder / "allocations.parquet")
    assert table.schema.equals(ALLOCATION_SCHEMA)
    assert table.to_pylist()[1] == {
        "step": 4,
        "prompt_id": "b",
        "task": "hard",
        "success_prob": 0.5,
        "gradient_variance": 1.0,
        "prompt_weight": 1.0,
        "n": 3,
        "successes": 0,
        "trials": 1,
        **dict.fromkeys(f"n_{policy}" for policy in POLICIES),
        "n_uniform": 2,
    }
    assert pq.read_table(log.folder / "evaluation.parquet").schema.equals(EVALUATION_SCHEMA)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(pa.table({"x": [1]}), path)
    with pytest.raises(AttributeError):
        write_table("not a table", path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]
    assert pq.read_table(path).to_pydict() == {"x": [1]}


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(pa.table({"x": [1]}), path)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run\.output_root: .*/file/run cannot be written to"):
        RunLog(tmp_path / "file" / "run", "", pa.table({"x": [1]}))


def test_a_folder_with_another_run_is_refused(tmp_path):
    check_output_dir(tmp_path / "new")
    check_output_dir(tmp_path)
    RunLog(tmp_path / "began", "", pa.table({"x": [1]}))
    check_output_dir(tmp_path / "began")  # it never came to a step
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"already holds a run: set run\.name"):
        check_output_dir(tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        check_output_dir(tmp_path / "metrics.jsonl")


def test_rollout_ids_of_an_allocation():
    assert ALLOCATION.rollout_ids() == [RolloutId(4, "a", 0), RolloutId(4, "a", 1)] + [
        RolloutId(4, "b", k) for k in range(3)
    ]


PROMPTS = pa.table({"prompt_id": ["a", "b"]})


def span(number, step=0):
    return TimelineSpan("learner", "learner", "train", float(number), number + 1.0, step=step)


def evaluation(step, successes):
    return [{"step": step, "prompt_id": "a", "task": "easy", "successes": successes, "trials": 8}]


def take_step(log, step, reward):
    allocation = dataclasses.replace(ALLOCATION, step=step)
    log.add_step(
        {"step": step, "reward": reward}, allocation_rows(allocation, np.array([1, 0]), np.array([2, 1]), TASK_OF)
    )
    log.add_spans([span(step, step)])
    write_table(pa.table({"reward": [reward]}), log.folder / "rollouts" / f"step={step:05d}" / "part-0.parquet")


def evaluate(log, step, successes):
    write_table(pa.table({"x": [successes]}), log.folder / "evaluation" / f"step={step:05d}" / "part-0.parquet")
    log.add_evaluation(evaluation(step, successes))


def contents(folder):
    """What can be read of a run, the timeline apart."""
    return {
        "metrics": (folder / "metrics.jsonl").read_text(),
        "allocations": pq.read_table(folder / "allocations.parquet").to_pylist(),
        "evaluation": pq.read_table(folder / "evaluation.parquet").to_pylist(),
        "parts": {
            str(path.relative_to(folder)): pq.read_table(path, partitioning=None).to_pylist()
            for path in sorted(folder.rglob("part-0.parquet"))
        },
    }


@pytest.mark.parametrize("resume_at", [0, 2, 3, 4])
def test_a_resumed_run_leaves_what_an_uninterrupted_one_leaves(tmp_path, resume_at):
    """The first attempt ended after step 3 and its evaluation; whatever it had been, the second one is what stays."""
    for name, first_steps in (("whole", 0), ("resumed", 4)):
        log = RunLog(tmp_path / name, "", PROMPTS)
        if first_steps:
            evaluate(log, 0, 3 if resume_at else 2)
            for step in range(first_steps):
                take_step(log, step, 0.1 * step if step < resume_at else 0.9)
            evaluate(log, first_steps, 1)
            log = RunLog(log.folder, "", PROMPTS, resume_at=resume_at)
        if not first_steps or not resume_at:  # the controller evaluates before step 0 alone
            evaluate(log, 0, 3)
        for step in range(resume_at if first_steps else 0, 4):
            take_step(log, step, 0.1 * step)
        evaluate(log, 4, 7)
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")


def test_going_back_removes_what_comes_again_and_nothing_else(tmp_path):
    log = RunLog(tmp_path, "steps: 4", PROMPTS)
    evaluate(log, 0, 2)
    for step in range(4):
        take_step(log, step, 0.5)
    evaluate(log, 4, 6)
    log.add_recovery({"actor": "generator-0", "seconds": math.inf})
    RunLog(tmp_path, "steps: 8", PROMPTS, resume_at=2)
    assert (tmp_path / "config.yaml").read_text() == "steps: 8"
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1]
    assert pq.read_table(tmp_path / "allocations.parquet").column("step").to_pylist() == [0, 0, 1, 1]
    assert pq.read_table(tmp_path / "allocations.parquet").schema.equals(ALLOCATION_SCHEMA)
    assert pq.read_table(tmp_path / "evaluation.parquet").to_pylist() == evaluation(0, 2)
    parts = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("step=*"))
    assert parts == ["evaluation/step=00000", "rollouts/step=00000", "rollouts/step=00001"]
    assert read_timeline(tmp_path / "timeline.jsonl") == tuple(span(step, step) for step in range(4))
    assert json.loads((tmp_path / "recoveries.jsonl").read_text()) == {"actor": "generator-0", "seconds": None}
    assert not list(tmp_path.rglob("*.partial"))


def test_the_evaluation_of_a_finished_run_stays_when_it_goes_on(tmp_path):
    log = RunLog(tmp_path, "", PROMPTS)
    for step in range(2):
        take_step(log, step, 0.5)
    evaluate(log, 2, 6)
    log = RunLog(tmp_path, "", PROMPTS, resume_at=2)
    assert (tmp_path / "evaluation" / "step=00002").is_dir()
    log.add_evaluation(evaluation(4, 7))
    assert pq.read_table(tmp_path / "evaluation.parquet").to_pylist() == evaluation(2, 6) + evaluation(4, 7)


def test_an_evaluation_that_comes_again_replaces_the_first(tmp_path):
    log = RunLog(tmp_path, "", PROMPTS)
    for step, successes in ((0, 1), (4, 2), (4, 3)):
        log.add_evaluation(evaluation(step, successes))
    assert pq.read_table(tmp_path / "evaluation.parquet").to_pylist() == evaluation(0, 1) + evaluation(4, 3)


def test_lines_that_a_crash_has_torn_go_and_new_ones_are_whole(tmp_path):
    log = RunLog(tmp_path, "", PROMPTS)
    for step in range(2):
        take_step(log, step, 0.5)
    log.add_recovery({"actor": "a"})
    for name in ("metrics.jsonl", "timeline.jsonl", "recoveries.jsonl"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole + b'{"step": 1, "task": "\xc3')
    log = RunLog(tmp_path, "", PROMPTS, resume_at=2)
    take_step(log, 2, 0.5)
    log.add_recovery({"actor": "b"})
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert len(read_timeline(tmp_path / "timeline.jsonl")) == 3
    recoveries = [json.loads(line) for line in (tmp_path / "recoveries.jsonl").read_text().splitlines()]
    assert recoveries == [{"actor": "a"}, {"actor": "b"}]


def test_a_run_whose_folder_is_lost_goes_on_in_a_new_one(tmp_path):
    log = RunLog(tmp_path / "new" / "run", "run: {}\n", PROMPTS, resume_at=3)
    take_step(log, 3, 0.5)
    assert json.loads((log.folder / "metrics.jsonl").read_text())["step"] == 3
    assert (log.folder / "config.yaml").is_file() and pq.read_table(log.folder / "prompts.parquet").equals(PROMPTS)
    assert read_timeline(log.folder / "timeline.jsonl") == (span(3, 3),)


def test_a_run_that_goes_on_from_step_0_keeps_its_spans(tmp_path):
    RunLog(tmp_path, "", PROMPTS).add_spans([span(1)])
    RunLog(tmp_path, "", PROMPTS, resume_at=0)
    assert read_timeline(tmp_path / "timeline.jsonl") == (span(1),)


def test_a_table_that_is_damaged_stops_the_run_and_stays(tmp_path):
    take_step(RunLog(tmp_path, "", PROMPTS), 0, 0.5)
    (tmp_path / "allocations.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"allocations\.parquet is damaged .* move it away"):
        RunLog(tmp_path, "", PROMPTS, resume_at=1)
    assert (tmp_path / "allocations.parquet").read_bytes() == b"PAR1"
    write_table(pa.table({"step": [0]}), tmp_path / "allocations.parquet")
    with pytest.raises(ConfigError, match=r"allocations\.parquet is damaged or of another version"):
        RunLog(tmp_path, "", PROMPTS, resume_at=1)
