from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.dispatch.ledger import Ledger
from vipray.records import RolloutId

IDS = [RolloutId(0, prompt_id, k) for prompt_id in "abc" for k in range(3)]


def test_a_rollout_is_counted_once():
    ledger = Ledger(IDS[:2])
    ledger.issue(IDS[0], "g0")
    assert ledger.complete(IDS[0]) is True
    assert ledger.complete(IDS[0]) is False
    assert ledger.unfinished == [IDS[1]]
    ledger.issue(IDS[1], "g1")
    ledger.complete(IDS[1])
    assert ledger.is_complete
    assert ledger.metrics() == {"reissued": 0.0, "duplicates": 1.0, "dropped": 0.0, "set_aside": 0.0}


def test_what_is_set_aside_is_not_waited_for_and_never_counted():
    ledger = Ledger(IDS[:3])
    ledger.issue(IDS[0], "g0")
    assert ledger.put_aside(IDS[0]) and ledger.put_aside(IDS[1])
    assert not ledger.put_aside(IDS[0])
    assert ledger.set_aside == IDS[:2] and ledger.unfinished == [IDS[2]]
    assert ledger.is_set_aside(IDS[0]) and IDS[0] in ledger and IDS[3] not in ledger
    assert ledger.complete(IDS[0]) is False and ledger.give_up("g0") == []
    assert ledger.complete(IDS[2]) and not ledger.put_aside(IDS[2]) and ledger.is_complete
    assert ledger.metrics() == {"reissued": 0.0, "duplicates": 0.0, "dropped": 0.0, "set_aside": 2.0}


def test_only_what_a_lost_generator_has_not_finished_is_pending_again():
    ledger = Ledger(IDS[:4])
    for rollout_id in IDS[:3]:
        ledger.issue(rollout_id, "g0")
    ledger.issue(IDS[3], "g1")
    ledger.complete(IDS[1])
    assert ledger.give_up("g0") == [IDS[0], IDS[2]]
    assert ledger.pending == [IDS[0], IDS[2]]
    assert ledger.unfinished == [IDS[0], IDS[2], IDS[3]]
    assert ledger.metrics()["reissued"] == 2


def test_a_late_result_counts_while_the_rollout_is_due_again():
    ledger = Ledger(IDS[:1])
    ledger.issue(IDS[0], "g0")
    ledger.give_up("g0")
    assert ledger.complete(IDS[0]) is True
    assert ledger.is_complete


def test_what_does_not_belong_to_the_step_is_refused():
    ledger = Ledger(IDS[:1])
    with pytest.raises(ValueError, match="not of this step"):
        ledger.complete(RolloutId(1, "a", 0))
    ledger.issue(IDS[0], "g0")
    with pytest.raises(ValueError, match="not pending"):
        ledger.issue(IDS[0], "g1")
    with pytest.raises(ValueError, match="1 rollout ids occur twice"):
        Ledger([IDS[0], IDS[0]])


events = st.tuples(st.sampled_from(["finish", "lose", "repeat"]), st.integers(0, 8), st.integers(0, 2))


@given(st.lists(events, max_size=80))
def test_any_interleaving_ends_with_every_rollout_counted_exactly_once(events):
    ledger, counted = Ledger(IDS), []

    def issue_pending():
        for number, rollout_id in enumerate(ledger.pending):
            ledger.issue(rollout_id, f"g{number % 3}")

    issue_pending()
    for kind, index, generator in events:
        if kind == "lose":
            ledger.give_up(f"g{generator}")
            issue_pending()
        elif ledger.complete(IDS[index]):
            counted.append(IDS[index])
        if kind == "repeat":
            assert ledger.complete(IDS[index]) is False
        assert len(counted) + len(ledger.unfinished) == len(IDS)
    for rollout_id in ledger.unfinished:
        if ledger.complete(rollout_id):
            counted.append(rollout_id)
    assert ledger.is_complete
    assert sorted(counted) == sorted(IDS)
