from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vipray.dispatch.restarts import RestartAction, RestartPolicy


def test_the_budget_comes_back_when_the_window_has_passed():
    policy = RestartPolicy(max_restarts=2, window_s=10.0, backoff_s=1.0, max_backoff_s=1.5)
    decisions = [policy.decide(at) for at in (0.0, 1.0, 2.0, 10.0, 10.5)]
    assert [decision.action.value for decision in decisions] == ["restart", "restart", "give_up", "restart", "give_up"]
    assert [decision.delay_s for decision in decisions] == [1.0, 1.5, 0.0, 1.5, 0.0]
    assert decisions[3].reason == "replacement 2 of at most 2 within 10 s"


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(0, 4), st.floats(0.1, 50))
def test_no_window_ever_holds_more_replacements_than_the_budget(gaps, budget, window_s):
    policy, now, made = RestartPolicy(budget, window_s, backoff_s=1.0), 0.0, []
    for gap in gaps:
        now += gap
        if policy.decide(now).action is RestartAction.RESTART:
            made.append(now)
    for at in made:
        assert sum(at - window_s < other <= at for other in made) <= budget
