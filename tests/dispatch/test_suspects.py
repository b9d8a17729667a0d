from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.staleness import StalenessAction, StalenessPolicy
from vipray.dispatch.suspects import Suspects
from vipray.records import RolloutId

IDS = [RolloutId(0, "a", k) for k in range(6)]


def test_deaths_in_company_make_suspects_and_convict_nobody():
    suspects = Suspects(max_kills=3)
    for _ in range(5):
        suspects.note_loss(IDS[:2])
    assert suspects.is_suspect(IDS[0]) and suspects.is_suspect(IDS[1]) and not suspects.is_suspect(IDS[2])
    assert not suspects.is_set_aside(IDS[0])
    suspects.note_loss(IDS[:1])
    assert [suspects.is_set_aside(rollout_id) for rollout_id in IDS[:2]] == [True, False]
    assert suspects.reason(IDS[0]) == "6 generators were lost while they made it"


def test_blames_convict_in_any_company():
    suspects = Suspects(max_kills=2)
    suspects.note_loss(IDS[:3])
    suspects.blame(IDS[1])
    assert suspects.is_set_aside(IDS[1]) and not suspects.is_set_aside(IDS[0])
    assert suspects.reason(IDS[1]) == "2 generators were lost or failed while they made it"


def test_one_death_alone_is_enough_where_one_is_allowed():
    suspects = Suspects(max_kills=1)
    assert not suspects.is_suspect(IDS[0])
    suspects.note_loss(IDS[1:3])
    suspects.note_loss(IDS[:1])
    assert suspects.is_set_aside(IDS[0]) and suspects.reason(IDS[0]) == "1 generator was lost while it made it"
    assert suspects.is_suspect(IDS[1]) and not suspects.is_set_aside(IDS[1])
    with pytest.raises(ValueError, match="max_kills must be >= 1, got 0"):
        Suspects(0)


def test_a_step_that_is_over_is_forgotten():
    suspects, later = Suspects(max_kills=1), RolloutId(1, "a", 0)
    for rollout_id in (IDS[0], later):
        suspects.blame(rollout_id)
    suspects.forget(0)
    assert not suspects.is_set_aside(IDS[0]) and not suspects.is_suspect(IDS[0])
    assert suspects.is_set_aside(later)


# In the dispatcher


def dispatcher_of(num_generators, num_rollouts, *, max_rollouts=2, max_kills=2):
    dispatcher = Dispatcher(StalenessPolicy(), max_rollouts=max_rollouts, max_tokens=1e9, max_kills=max_kills)
    for index in range(num_generators):
        dispatcher.join(f"g{index}", 0)
    dispatcher.add_step(0, IDS[:num_rollouts], {"a": 1.0})
    return dispatcher


def test_one_generator_drains_for_a_suspect_and_the_others_go_on():
    dispatcher = dispatcher_of(3, 6)
    assert dispatcher.assign() == {"g0": IDS[:2], "g1": IDS[2:4], "g2": IDS[4:6]}
    assert dispatcher.leave("g0") == IDS[:2]
    assert dispatcher.assign() == {}
    dispatcher.complete(IDS[2], "g1", 0)
    assert dispatcher.assign() == {}  # g1 has room, and drains
    dispatcher.add_step(1, [RolloutId(1, "b", k) for k in range(9)], {"b": 1.0})
    dispatcher.confirm("g2", 1)
    dispatcher.complete(IDS[4], "g2", 0)
    assert dispatcher.assign() == {"g2": [RolloutId(1, "b", 0)]}  # g1 is kept, not both
    dispatcher.complete(IDS[3], "g1", 0)
    assert dispatcher.assign() == {"g1": IDS[:1]}
    assert dispatcher.assign() == {}
    dispatcher.complete(IDS[0], "g1", 0)
    assert dispatcher.assign() == {"g1": IDS[1:2]}
    dispatcher.complete(IDS[1], "g1", 0)
    dispatcher.complete(IDS[5], "g2", 0)
    assert dispatcher.is_complete(0) and dispatcher.set_aside(0) == {}


def test_a_suspect_that_dies_alone_is_set_aside_and_its_late_result_is_not_counted():
    dispatcher = dispatcher_of(3, 2, max_rollouts=4)
    dispatcher.leave("g2")
    assert dispatcher.assign() == {"g0": IDS[:1], "g1": IDS[1:2]}
    dispatcher.complete(IDS[1], "g1", 0)
    assert dispatcher.leave("g0") == IDS[:1]
    assert dispatcher.assign() == {"g1": IDS[:1]}
    assert dispatcher.leave("g1") == []
    assert dispatcher.set_aside(0) == {IDS[0]: "2 generators were lost while they made it"}
    assert dispatcher.is_complete(0) and dispatcher.unfinished(0) == [] and not dispatcher.has_pending()
    late = dispatcher.complete(IDS[0], "g0", 0)
    assert late.action is StalenessAction.DROP
    assert late.reason == f"{IDS[0]} was set aside: 2 generators were lost while they made it"
    assert dispatcher.metrics(0)["set_aside"] == 1.0 and dispatcher.metrics(0)["reissued"] == 1.0
    assert dispatcher.close_step(0) == IDS[:1]


def test_the_death_of_a_node_says_nothing_about_what_was_made_there():
    dispatcher = dispatcher_of(0, 1)
    for index in range(9):
        dispatcher.join(f"g{index}", 0)
        assert dispatcher.assign() == {f"g{index}": IDS[:1]}
        assert dispatcher.leave(f"g{index}", is_suspicious=False) == IDS[:1]
    assert dispatcher.set_aside(0) == {}


def test_a_late_result_clears_a_suspect_and_gives_back_the_generator_that_drains_for_it():
    dispatcher = dispatcher_of(2, 6)
    lost = dispatcher.assign()["g0"]
    dispatcher.leave("g0")
    dispatcher.release(IDS[2], "g1")
    assert dispatcher.assign() == {}  # g1 drains
    assert dispatcher.complete(lost[0], "g0", 0).action is StalenessAction.ADMIT
    assert dispatcher.assign() == {}  # for the other one now
    assert dispatcher.complete(lost[1], "g0", 0).action is StalenessAction.ADMIT
    assert dispatcher.assign() == {"g1": IDS[4:5]}


def test_what_is_lost_on_the_way_to_the_verifier_brings_nobody_under_suspicion():
    dispatcher = dispatcher_of(2, 1)
    dispatcher.assign()
    dispatcher.release(IDS[0], "g0")
    assert dispatcher.leave("g0") == []
    dispatcher.reissue(IDS[0], "g0")
    assert dispatcher.assign() == {"g1": IDS[:1]}
    assert dispatcher.leave("g1") == IDS[:1] and dispatcher.set_aside(0) == {}


def test_a_blame_counts_once_although_the_generator_leaves_after_it():
    dispatcher = dispatcher_of(1, 2)
    dispatcher.assign()
    assert dispatcher.blame(IDS[0], "g0") is False
    assert dispatcher.leave("g0") == IDS[1:2]
    dispatcher.join("g1", 0)
    assert dispatcher.assign() == {"g1": IDS[:1]}  # a suspect, and so alone
    assert dispatcher.blame(IDS[0], "g1") is True
    assert dispatcher.set_aside(0) == {IDS[0]: "2 generators were lost or failed while they made it"}
    assert dispatcher.blame(IDS[0], "g1") is True  # nothing further happens


def test_suspects_spread_over_generators_that_have_nothing_else():
    dispatcher = dispatcher_of(1, 4, max_rollouts=4)
    dispatcher.assign()
    dispatcher.leave("g0")
    for index in range(1, 4):
        dispatcher.join(f"g{index}", 0)
    assert sorted(dispatcher.assign().values()) == [[rollout_id] for rollout_id in IDS[:3]]


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 4), st.booleans())
def test_what_always_kills_is_set_aside_after_max_kills_and_everything_else_is_made(
    data, num_generators, max_kills, max_rollouts, do_engines_raise
):
    dispatcher = Dispatcher(StalenessPolicy(1), max_rollouts=max_rollouts, max_tokens=9.0, max_kills=max_kills)
    ids = [RolloutId(step, prompt_id, k) for step in range(2) for prompt_id in "abc" for k in range(4)]
    poison = data.draw(st.sets(st.sampled_from(ids), max_size=3))
    making: dict[str, list[RolloutId]] = {}
    losses = dict.fromkeys(ids, 0)
    for step in range(2):
        dispatcher.add_step(step, [r for r in ids if r.step == step], {"a": 1.0, "b": 2.0, "c": 4.0})
    made = []
    for turn in range(2000):
        while len(making) < num_generators:
            name = f"g{turn}-{len(making)}"
            dispatcher.join(name, 0)
            making[name] = []
        for name, started in dispatcher.assign().items():
            making[name] += started
        busy = sorted(name for name, rollouts in making.items() if rollouts)
        if not busy:
            break
        name = data.draw(st.sampled_from(busy))
        rollout_id = data.draw(st.sampled_from(making[name]))
        if rollout_id not in poison:
            making[name].remove(rollout_id)
            assert dispatcher.complete(rollout_id, name, 0).action is StalenessAction.ADMIT
            made.append(rollout_id)
        elif do_engines_raise:
            losses[rollout_id] += 1
            dispatcher.blame(rollout_id, name)
            dispatcher.leave(name, is_suspicious=False)
            del making[name]
        else:
            for lost in making.pop(name):
                losses[lost] += 1
            dispatcher.leave(name)
    aside = {**dispatcher.set_aside(0), **dispatcher.set_aside(1)}
    assert aside.keys() == poison and sorted(made) == sorted(set(ids) - poison)
    assert {losses[rollout_id] for rollout_id in poison} <= {max_kills}
    assert dispatcher.is_complete(0) and dispatcher.is_complete(1)
