"""The timeline of hand-made spans, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.test_report import make_run, page_of
from vipray.errors import ConfigError
from vipray.records import TimelineSpan
from vipray.report import load_run, write_report
from vipray.report.intervals import Intervals
from vipray.report.plots import timeline_svg
from vipray.report.summary import step_time_table
from vipray.report.timeline import read_timeline, step_times
from vipray.report.trace import assign_threads, trace_events

# Two generators, one of which is lost at 24; seconds after 1000. Step 0: 2 to 20, step 1: 20 to 40.
SPANS = [
    TimelineSpan("generator-0", "generator", "load_weights", 1000.0, 1001.0, version=0),
    TimelineSpan("generator-10", "generator", "load_weights", 1000.0, 1002.0, version=0),
    TimelineSpan("predictor", "predictor", "predict", 1002.0, 1003.0, step=0),
    TimelineSpan("allocator", "allocator", "allocate", 1003.0, 1003.5, step=0),
    TimelineSpan("generator-0", "generator", "generate", 1004.0, 1008.0, step=0),
    TimelineSpan("generator-0", "generator", "generate", 1006.0, 1010.0, step=0),
    TimelineSpan("generator-10", "generator", "generate", 1004.0, 1006.0, step=0),
    TimelineSpan("verifiers", "verifier", "verify", 1006.0, 1007.0, step=0),
    TimelineSpan("verifiers", "verifier", "verify", 1010.0, 1010.5, step=0),
    TimelineSpan("learner", "learner", "train", 1010.5, 1020.0, step=0),
    TimelineSpan("predictor", "predictor", "observe", 1010.5, 1011.0, step=0),
    TimelineSpan("predictor", "predictor", "predict", 1011.0, 1012.0, step=1),
    TimelineSpan("allocator", "allocator", "allocate", 1019.5, 1020.5, step=1),
    TimelineSpan("learner", "learner", "publish", 1020.0, 1021.0, version=1),
    TimelineSpan("generator-0", "generator", "generate", 1020.5, 1030.0, step=1),
    TimelineSpan("generator-0", "generator", "load_weights", 1021.0, 1022.0, version=1),
    TimelineSpan("generator-10", "generator", "lost", 1024.0, 1024.0),
    TimelineSpan("learner", "learner", "train", 1030.0, 1040.0, step=1),
]


def test_the_time_of_each_step_is_accounted_for():
    times = step_times(SPANS)
    expected: dict[str, list[float]] = {
        "step": [0, 1],
        "start_s": [1002.0, 1020.0],  # the first weights are of no step
        "duration_s": [18.0, 20.0],
        "generation_s": [6.0, 9.5],
        "verification_s": [1.5, 0.0],
        "training_s": [9.5, 10.0],
        "publishing_s": [0.0, 1.0],
        "predictor_hidden_s": [1.5, 0.0],  # what was predicted before there was anything to do is exposed
        "predictor_exposed_s": [1.0, 0.0],
        "allocator_hidden_s": [0.5, 0.0],  # half of the second allocation lies between training and generation
        "allocator_exposed_s": [0.5, 0.5],
        "generator_idle": [1 - 8 / 36, 1 - 8.5 / 24],  # weights were taken for a second; the other was lost after 4
        "learner_idle": [1 - 9.5 / 9.5, 1 - 11 / 20],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(times, name), values, atol=1e-9, err_msg=name)


def test_a_trace_has_what_a_viewer_needs():
    events = json.loads(json.dumps(trace_events(SPANS)))
    assert all({"ph", "name", "pid", "tid", "args"} <= set(event) for event in events)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        *("generator", "verifier", "predictor", "allocator", "learner"),
    ]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == [
        *("generator-0", "generator-0 (2)", "generator-10", "verifiers", "predictor", "allocator", "learner"),
    ]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(SPANS)
    (training,) = [e for e in complete if e["name"] == "train 1"]
    assert (training["ts"], training["dur"]) == (pytest.approx(30e6), pytest.approx(10e6))
    assert threads[training["tid"]] == "learner" and training["args"] == {"step": 1}
    publishing = next(e for e in complete if e["name"] == "publish")
    assert publishing["args"] == {"version": 1}


spans = st.builds(
    lambda actor, start, length: TimelineSpan(actor, "generator", "generate", start, start + length),
    st.sampled_from(["g0", "g1"]),
    st.floats(0, 100),
    st.floats(0, 30),
)


@given(st.lists(spans, max_size=30))
def test_no_thread_of_a_trace_holds_spans_that_overlap(some):
    threads = assign_threads(some)
    assert sorted(map(repr, some)) == sorted(repr(span) for own in threads.values() for span in own)
    for (_, actor, _), own in threads.items():
        assert {span.actor for span in own} == {actor}
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(own))


cells = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


@given(cells, cells, st.integers(-5, 45), st.integers(0, 45))
def test_intervals_are_sets_of_time(first, second, start, length):
    def covered(pairs):
        return {cell for a, b in pairs for cell in range(a, b)}

    window = set(range(start, start + length))
    a, b = Intervals(first), Intervals(second)
    assert a.within(start, start + length) == len(covered(first) & window)
    assert (a & b).within(start, start + length) == len(covered(first) & covered(second) & window)
    assert all(end < later for (_, end), (later, _) in itertools.pairwise(a))


def write_timeline(run_dir, spans):
    (run_dir / "timeline.jsonl").write_text("".join(json.dumps(dataclasses.asdict(span)) + "\n" for span in spans))


@pytest.fixture
def run_dir(tmp_path):
    path = make_run(tmp_path / "run")
    write_timeline(path, reversed(SPANS))
    return path


def test_a_timeline_is_read_in_order_and_a_torn_line_is_passed_over(run_dir):
    path = run_dir / "timeline.jsonl"
    path.write_bytes(path.read_bytes() + b'{"actor": "gen')
    spans = read_timeline(path)
    assert sorted(spans, key=repr) == sorted(SPANS, key=repr)
    assert [span.start_s for span in spans] == sorted(span.start_s for span in SPANS)
    path.write_text('{"actor": "x"}\n')
    with pytest.raises(ConfigError, match=r"timeline\.jsonl holds a line that is no span"):
        load_run(run_dir)


def test_the_page_shows_the_timeline_and_a_trace_lies_beside_it(run_dir):
    page = page_of(run_dir)
    assert page.tags.count("svg") == 5 and len(page.ids) == len(set(page.ids))
    for expected in [
        ["", "step 0", "step 1", "mean of 2"],
        ["Time", "18.0 s", "20.0 s", "19.0 s"],
        ["Predictor, hidden", "1.5 s", "0.0 s", "750 ms"],
        ["Allocator, exposed", "500 ms", "500 ms", "500 ms"],
        ["Generators idle", "77.8 %", "64.6 %", "71.2 %"],
    ]:
        assert expected in page.rows
    trace = json.loads((run_dir / "trace.json").read_text())
    assert trace["traceEvents"] == trace_events(load_run(run_dir).timeline)


def test_a_run_without_a_timeline_says_nothing_of_it(tmp_path):
    run_dir = make_run(tmp_path / "run")
    assert "Timeline" not in write_report(run_dir).read_text()
    assert not (run_dir / "trace.json").exists()
    assert step_time_table(load_run(run_dir)) is None


def test_a_timeline_that_no_step_was_trained_in_can_be_drawn(run_dir):
    write_timeline(run_dir, SPANS[:3])
    run = load_run(run_dir)
    assert "no step in the timeline yet" in timeline_svg(run) and step_time_table(run) is None


def test_many_actors_and_steps_keep_the_picture_small(run_dir):
    many = [
        dataclasses.replace(
            span,
            actor=f"{span.actor}-{index}" if span.role == "generator" else span.actor,
            start_s=span.start_s + 100 * index,
            end_s=span.end_s + 100 * index,
            step=None if span.step is None else span.step + 2 * index,
        )
        for index in range(40)
        for span in SPANS
    ]
    many += [TimelineSpan(f"g{index}", "generator", "generate", 4900.0, 4940.0, step=79) for index in range(30)]
    write_timeline(run_dir, many)
    run = load_run(run_dir)
    svg = timeline_svg(run)
    assert "more actors are not shown" in svg and ">79<" in svg and ">76<" not in svg
    table = step_time_table(run)
    assert table is not None and table.columns[-2:] == ("step 79", "mean of 80") and len(table.columns) == 6


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium on this machine")
def test_a_browser_shows_the_page(run_dir, tmp_path):
    page, picture = write_report(run_dir), tmp_path / "page.png"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=800,3600"]
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True, timeout=120)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 50_000
