from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.staleness import StalenessAction, StalenessPolicy, staleness_metrics
from vipray.records import RolloutId


@pytest.mark.parametrize(
    ("on_stale", "step", "version", "expected"),
    [
        ("wait", 4, 4, StalenessAction.START),
        ("wait", 4, 2, StalenessAction.START),
        ("wait", 4, 1, StalenessAction.WAIT),
        ("wait", 4, 5, StalenessAction.WAIT),
        ("wait", 4, None, StalenessAction.WAIT),
        ("reissue", 4, 1, StalenessAction.START),
        ("reissue", 4, 0, StalenessAction.WAIT),
    ],
)
def test_what_may_start_on_which_version(on_stale, step, version, expected):
    assert StalenessPolicy(2, on_stale).may_start(step, version).action is expected


def test_a_retry_risks_nothing():
    assert StalenessPolicy(2, "reissue").may_start(4, 1, is_retry=True).action is StalenessAction.WAIT


@given(st.integers(0, 5), st.integers(0, 20), st.integers(0, 20), st.sampled_from(["wait", "reissue"]))
def test_what_was_started_while_waiting_is_admitted_and_nothing_older_ever(k, step, version, on_stale):
    policy = StalenessPolicy(k, on_stale)
    admitted = policy.at_entry(step, version).action is StalenessAction.ADMIT
    assert admitted == (0 <= step - version <= k)
    if on_stale == "wait":
        assert (policy.may_start(step, version).action is StalenessAction.START) == admitted


def test_reasons_say_the_numbers():
    policy = StalenessPolicy(1)
    assert policy.at_entry(5, 3).reason == "version 3 in step 5 is 2 versions old, more than 1"
    assert policy.at_entry(5, 6).reason == "version 6 in step 5: the learner no longer has that version"
    assert policy.may_start(5, None).reason == "the generator has confirmed no version yet"


def test_other_settings_are_refused():
    with pytest.raises(ValueError, match="max_staleness must be >= 0, got -1"):
        StalenessPolicy(-1)
    with pytest.raises(ValueError, match="on_stale must be one of wait, reissue, got 'drop'"):
        StalenessPolicy(0, "drop")


def test_ages_of_a_batch():
    assert staleness_metrics(5, [5, 4, 4, 3]) == {"mean": 1.0, "max": 2.0}
    assert staleness_metrics(5, []) == {}


def train_by(draw, k, on_stale, num_steps=5):
    """A run in which every delay, every death and every refusal to take new weights in time is drawn."""
    dispatcher = Dispatcher(StalenessPolicy(k, on_stale), max_rollouts=2, max_tokens=6.0)
    events: list[tuple] = []
    trained: list[list[int]] = []
    versions: dict[str, int] = {}
    learner_version, added, names, order = 0, 0, 0, 0
    first_version: dict[tuple[str, RolloutId], int] = {}
    arrived: dict[int, list[int]] = {}

    def push(delay, *event):
        nonlocal order
        order += 1
        heapq.heappush(events, (now + delay, order, event))

    def join():
        nonlocal names
        versions[f"g{names}"] = learner_version
        dispatcher.join(f"g{names}", learner_version)
        names += 1

    now = 0.0
    join()
    join()
    for _ in range(5000):
        while added < num_steps and added <= learner_version + k + 1:
            ids = [RolloutId(added, prompt, j) for prompt in "ab" for j in range(2)]
            dispatcher.add_step(added, ids, {"a": 1.0, "b": 4.0})
            added += 1
        for name, rollout_ids in dispatcher.assign().items():
            for rollout_id in rollout_ids:
                first_version[name, rollout_id] = versions[name]
                push(draw(st.integers(1, 9)), "end", name, rollout_id)
        if learner_version == num_steps:
            return trained
        now, _, (kind, *what) = heapq.heappop(events)
        if kind == "end":
            name, rollout_id = what
            if draw(st.integers(0, 9)) == 0 and name in versions:
                dispatcher.leave(name, is_suspicious=False)
                del versions[name]
                push(3, "join")
            version = first_version[name, rollout_id]
            if dispatcher.complete(rollout_id, name, version).action is StalenessAction.ADMIT:
                arrived.setdefault(rollout_id.step, []).append(version)
        elif kind == "join":
            join()
        elif kind == "take" and what[0] in versions:
            name, version = what
            versions[name] = max(version, versions[name])
            dispatcher.confirm(name, versions[name])
        elif kind == "trained":
            learner_version += 1
            for name in versions:
                push(draw(st.integers(0, 30)), "take", name, learner_version)
        if (
            learner_version < num_steps
            and len(arrived.get(learner_version, [])) == 4
            and len(trained) == learner_version
        ):
            trained.append(arrived[learner_version])
            dispatcher.close_step(learner_version)
            push(draw(st.integers(1, 20)), "trained")
    raise AssertionError("the run does not come to an end")


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 3), st.sampled_from(["wait", "reissue"]))
def test_no_trained_token_is_older_than_the_bound_whatever_happens(data, k, on_stale):
    trained = train_by(data.draw, k, on_stale)
    assert len(trained) == 5
    for step, versions in enumerate(trained):
        assert all(0 <= step - version <= k for version in versions)
