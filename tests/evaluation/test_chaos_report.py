"""Kills find their recoveries, and what was lost, counted twice or different is counted exactly."""

from __future__ import annotations

import dataclasses
import json

import pyarrow as pa
import pytest

from vipray.evaluation.chaos_report import (
    Account,
    Differences,
    Kill,
    Quantiles,
    TrainedOn,
    account,
    differences,
    kind_figures,
    match,
    read_recoveries,
    report,
)
from vipray.records import Recovery


def recovery(kind, lost_at_s, reissued_at_s=None, serving_at_s=None, num_reissued=0):
    reissued_at_s = lost_at_s if reissued_at_s is None else reissued_at_s
    return Recovery(kind, f"{kind}-0", "it died", lost_at_s, reissued_at_s, serving_at_s, num_reissued)


def run(counts, *, rows=None, dropped=None, reward=lambda *_: 1.0, tokens=lambda *_: [1, 2]):
    """A run with n rollouts for each (step, prompt id), all of them in its batches unless `rows` says which."""
    asked = [(step, prompt_id, k) for (step, prompt_id), n in counts.items() for k in range(n)]
    rows = asked if rows is None else rows
    allocations = pa.table(
        {
            "step": [step for step, _ in counts],
            "prompt_id": [prompt_id for _, prompt_id in counts],
            "n": list(counts.values()),
        }
    )
    rollouts = pa.table(
        {
            "step": [row[0] for row in rows],
            "prompt_id": [row[1] for row in rows],
            "k": [row[2] for row in rows],
            "reward": [reward(*row) for row in rows],
            "outcome": ["correct" for _ in rows],
            "completion_token_ids": [tokens(*row) for row in rows],
        }
    )
    return TrainedOn(allocations, rollouts, dropped or {})


COUNTS = {(0, "a"): 2, (0, "b"): 1, (1, "a"): 3}


def test_a_kill_has_the_first_loss_of_its_kind_after_it():
    kills = [Kill("generator", 10.0), Kill("verifier", 10.5)]
    losses = [recovery("generator", 10.4, 10.7), recovery("verifier", 11.0), recovery("generator", 9.0)]
    generator, verifier = match(kills, losses)
    assert generator.recoveries == (losses[0],) and verifier.recoveries == (losses[1],)
    assert generator.detection_s == pytest.approx(0.4) and generator.recovery_s == pytest.approx(0.3)


def test_a_replacement_counts_once_all_of_it_serves():
    kills = [Kill("node", 10.0, {"generator": 2})]
    losses = [recovery("generator", 11.0, serving_at_s=14.0), recovery("generator", 11.5, serving_at_s=13.0)]
    assert [entry.replacement_s for entry in match(kills, losses)] == [pytest.approx(3.0)]
    losses = [losses[0], recovery("generator", 11.5)]
    assert [entry.replacement_s for entry in match(kills, losses)] == [None]


def test_a_kill_that_nobody_noticed_does_not_take_the_recovery_of_a_later_one():
    kills = [Kill("generator", 5.0), Kill("generator", 20.0), Kill("generator", 35.0)]
    losses = [recovery("generator", 20.1), recovery("generator", 35.1)]
    assert [entry.detection_s for entry in match(kills, losses)] == [None, pytest.approx(0.1), pytest.approx(0.1)]


def test_a_node_takes_as_many_losses_of_each_kind_as_it_had_actors():
    kills = [Kill("node", 10.0, {"generator": 2, "learner": 1}), Kill("generator", 10.5)]
    losses = [
        recovery("generator", 10.6),
        recovery("generator", 11.0, 11.5),
        recovery("learner", 11.2, 14.0),
        recovery("generator", 11.4, 11.6),
        recovery("generator", 12.0),
    ]
    node, generator = match(kills, losses)
    assert generator.recoveries == (losses[0],)
    assert node.recoveries == (losses[1], losses[2], losses[3])
    assert node.detection_s == pytest.approx(1.0) and node.recovery_s == pytest.approx(3.0)


def test_a_driver_is_missed_from_its_kill_on_and_ends_what_was_not_noticed_before():
    kills = [Kill("learner", 9.0), Kill("driver", 10.0), Kill("learner", 30.0)]
    losses = [recovery("driver", 8.0, 25.0), recovery("learner", 31.0)]
    before, driver, after = match(kills, losses)
    assert driver.detection_s is None and driver.recovery_s == pytest.approx(15.0)
    assert before.recoveries == () and after.recoveries == (losses[1],)
    learner, _ = kind_figures(kills, losses)
    assert (learner.kills, learner.detected, learner.covered, learner.missed) == (2, 1, 1, 0)


def test_an_object_is_known_by_its_recovery_alone():
    losses = [recovery("object", 10.0, 10.5)]
    (figures,) = kind_figures([Kill("object", 10.0)], losses)
    assert figures.detected == 1 and figures.detection_s is None
    assert figures.recovery_s is not None and figures.recovery_s.median == 0.5


def test_an_actor_killed_while_it_starts_is_covered_by_the_recovery_under_way():
    losses = [recovery("generator", 10.1, 10.2, serving_at_s=15.0)]
    starting, running = (
        [Kill("generator", 10.0), Kill("generator", 12.0)],
        [
            Kill("generator", 10.0),
            Kill("generator", 16.0),
        ],
    )
    assert [(f.detected, f.covered, f.missed) for f in kind_figures(starting, losses)] == [(1, 1, 0)]
    assert [(f.detected, f.covered, f.missed) for f in kind_figures(running, losses)] == [(1, 0, 1)]


def test_quantiles_are_of_what_is_known():
    found = Quantiles.of([None, 1.0, 3.0, 2.0])
    assert found is not None and dataclasses.astuple(found) == pytest.approx((2.0, 2.9, 3.0))
    assert Quantiles.of([None]) is None


def test_recoveries_are_read_in_order_of_time_without_a_torn_line():
    first, second = recovery("generator", 1.0, num_reissued=3), recovery("driver", 2.0)
    lines = [json.dumps(dataclasses.asdict(entry)) for entry in (second, first)]
    assert read_recoveries([*lines, '{"kind": "gen']) == [first, second]


def test_a_whole_run_is_accounted_for():
    assert account(run(COUNTS)) == Account(asked=6, lost=0, double=0, strange=0)


@pytest.mark.parametrize(
    ("rows", "dropped", "expected"),
    [
        ([(0, "a", 0), (0, "b", 0), (1, "a", 0), (1, "a", 1)], {}, Account(6, 2, 0, 0)),
        ([(0, "a", 0), (0, "b", 0), (1, "a", 0), (1, "a", 1)], {1: 1}, Account(6, 1, 0, 0)),
        ([(0, "a", 0), (0, "b", 0), (1, "a", 0), (1, "a", 1)], {0: 1, 1: 1}, Account(6, 0, 0, 0)),
        (
            [(0, "b", 0)] * 3 + [(0, "a", 0), (0, "a", 1), (1, "a", 0), (1, "a", 1), (1, "a", 2)],
            {},
            Account(6, 0, 2, 0),
        ),
        ([(0, "a", 0), (0, "a", 1), (0, "b", 0), *((1, "a", k) for k in range(4))], {}, Account(6, 0, 0, 1)),
    ],
)
def test_what_is_lost_double_or_strange_is_counted(rows, dropped, expected):
    assert account(run(COUNTS, rows=rows, dropped=dropped)) == expected


def test_equal_runs_do_not_differ_whatever_the_order_of_their_rows():
    one = run(COUNTS)
    other = TrainedOn(one.allocations, one.rollouts.take(list(reversed(range(6)))))
    assert differences(one, other) == Differences(compared=6, ids=0, n=0, rewards=0, tokens=0)


def test_every_difference_is_counted_where_it_is():
    one = run(COUNTS)
    other = run(
        {(0, "a"): 2, (0, "b"): 2, (1, "c"): 3},
        reward=lambda _, prompt_id, k: 0.0 if prompt_id == "a" else 1.0,
        tokens=lambda _, __, k: [1, 2] if k == 0 else [1, 3],
    )
    # b has one more in step 0; step 1 is of another prompt: 3 + 3 ids and 2 allocations
    assert differences(one, other) == Differences(compared=3, ids=7, n=3, rewards=2, tokens=1)


def test_runs_that_sample_are_compared_by_the_plan_of_their_first_step():
    one, other = run(COUNTS), run({**COUNTS, (1, "a"): 2}, tokens=lambda *_: [9])
    found = report([], [], one, other, parameters=None, is_complete=True, is_comparable=False)
    assert found.differences == Differences(compared=3, ids=0, n=0, rewards=None, tokens=None)
    assert found.problems() == []


def test_problems_name_whatever_must_not_happen():
    one = run(COUNTS)
    other = run(COUNTS, rows=[(0, "a", 0), (0, "a", 0), (0, "b", 0), (1, "a", 0), (1, "a", 1), (1, "a", 2)])
    found = report(
        [Kill("generator", 1.0)],
        [recovery("generator", 1.1, num_reissued=4), recovery("verifier", 1.2)],
        one,
        other,
        parameters=0.5,
        is_complete=False,
        is_comparable=True,
    )
    assert (found.kills, found.reissued, found.unmatched) == (1, 4, 1)
    assert found.problems() == [
        "the disturbed run did not come to its end",
        "1 rollouts are lost",
        "1 rollouts are counted twice",
        "1 differences from the undisturbed run",
        "final parameters differ by up to 0.5",
    ]
