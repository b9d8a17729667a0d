from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.staleness import StalenessAction, StalenessPolicy
from vipray.records import RolloutId


def group(prompt_id, number, step=0):
    return [RolloutId(step, prompt_id, k) for k in range(number)]


def dispatcher_of(num_generators, *, max_rollouts=8, max_tokens=math.inf, policy=None, version=0):
    dispatcher = Dispatcher(policy or StalenessPolicy(), max_rollouts=max_rollouts, max_tokens=max_tokens)
    for index in range(num_generators):
        dispatcher.join(f"g{index}", version)
    return dispatcher


def test_the_longest_start_first_and_the_rest_when_there_is_room():
    dispatcher = dispatcher_of(2, max_rollouts=1)
    dispatcher.add_step(
        0, [*group("short", 1), *group("long", 1), *group("middle", 1)], {"short": 1, "middle": 5, "long": 9}
    )
    assert dispatcher.assign() == {"g0": group("long", 1), "g1": group("middle", 1)}
    assert dispatcher.assign() == {}
    dispatcher.release(group("middle", 1)[0], "g1")
    assert dispatcher.assign() == {"g1": group("short", 1)}


def test_work_that_all_fits_is_spread_by_expected_tokens():
    dispatcher = dispatcher_of(2, max_rollouts=100)
    dispatcher.add_step(0, [*group("long", 8), *group("short", 20)], {"long": 10.0, "short": 1.0})
    started = dispatcher.assign()
    tokens = {g: sum({"long": 10, "short": 1}[r.prompt_id] for r in ids) for g, ids in started.items()}
    assert tokens == {"g0": 50, "g1": 50}
    assert [sum(r.prompt_id == "long" for r in ids) for ids in started.values()] == [4, 4]


def test_rollouts_of_a_prompt_stay_together_where_lengths_do_not_decide():
    prompts = [f"p{index}" for index in range(8)]
    dispatcher = dispatcher_of(4, max_rollouts=4)
    dispatcher.add_step(0, [r for p in prompts for r in group(p, 8)], dict.fromkeys(prompts, 3.0))
    homes: dict[str, set[str]] = {p: set() for p in prompts}
    running = {g: list(ids) for g, ids in dispatcher.assign().items()}
    while any(running.values()):
        for generator_id, rollouts in running.items():
            for rollout_id in rollouts[:1]:
                homes[rollout_id.prompt_id].add(generator_id)
                rollouts.remove(rollout_id)
                dispatcher.complete(rollout_id, generator_id, 0)
                for other, ids in dispatcher.assign().items():
                    running[other] += ids
    assert dispatcher.is_complete(0)
    assert all(len(generators) == 1 for generators in homes.values())


def test_a_large_group_is_split_over_all_generators():
    dispatcher = dispatcher_of(4, max_rollouts=64)
    dispatcher.add_step(0, group("a", 48), {"a": 7.0})
    assert [len(ids) for ids in dispatcher.assign().values()] == [12, 12, 12, 12]


def test_a_shorter_one_does_not_pass_the_longest_that_waits_for_room():
    dispatcher = dispatcher_of(1, max_tokens=10.0)
    dispatcher.add_step(0, [*group("a", 1), *group("b", 1), *group("c", 1)], {"a": 8.0, "b": 6.0, "c": 1.0})
    assert dispatcher.assign() == {"g0": group("a", 1)}  # "c" would fit beside it
    dispatcher.release(group("a", 1)[0], "g0")
    assert dispatcher.assign() == {"g0": [*group("b", 1), *group("c", 1)]}


def test_a_rollout_longer_than_the_bound_is_made_alone():
    dispatcher = dispatcher_of(1, max_tokens=10.0)
    dispatcher.add_step(0, [*group("a", 2), *group("b", 1)], {"a": 25.0, "b": 1.0})
    assert dispatcher.assign() == {"g0": group("a", 2)[:1]}
    dispatcher.release(group("a", 2)[0], "g0")
    assert dispatcher.assign() == {"g0": group("a", 2)[1:]}


def test_the_earlier_step_goes_first_and_the_next_one_fills_what_it_leaves():
    dispatcher = dispatcher_of(1, max_rollouts=3, policy=StalenessPolicy(1))
    dispatcher.add_step(0, group("a", 2), {"a": 1.0})
    dispatcher.add_step(1, group("b", 2, step=1), {"b": 50.0})
    assert dispatcher.assign() == {"g0": [*group("a", 2), *group("b", 2, step=1)[:1]]}


def test_a_step_waits_for_a_version_that_is_young_enough_on_each_generator_by_itself():
    dispatcher = dispatcher_of(2, max_rollouts=1)
    dispatcher.add_step(1, group("a", 2, step=1), {"a": 1.0})
    assert dispatcher.assign() == {}
    dispatcher.confirm("g1", 1)
    assert list(dispatcher.assign()) == ["g1"]
    dispatcher.confirm("g0", 1)
    assert list(dispatcher.assign()) == ["g0"]


def test_what_comes_too_old_is_made_again_on_a_younger_version_only():
    dispatcher = dispatcher_of(1, policy=StalenessPolicy(0, "reissue"))
    (rollout_id,) = group("a", 1, step=1)
    dispatcher.add_step(1, [rollout_id], {"a": 1.0})
    assert dispatcher.assign() == {"g0": [rollout_id]}  # a version ahead of the bound
    assert dispatcher.complete(rollout_id, "g0", 0).action is StalenessAction.REISSUE
    assert dispatcher.assign() == {}
    dispatcher.confirm("g0", 1)
    assert dispatcher.assign() == {"g0": [rollout_id]}
    assert dispatcher.complete(rollout_id, "g0", 1).action is StalenessAction.ADMIT
    counts = {"reissued": 1.0, "duplicates": 0.0, "dropped": 0.0, "set_aside": 0.0, "too_old": 1.0}
    assert dispatcher.metrics(1) == counts


def test_a_late_result_counts_and_the_second_one_is_a_duplicate():
    dispatcher = dispatcher_of(2, max_rollouts=1)
    (rollout_id,) = group("a", 1)
    dispatcher.add_step(0, [rollout_id], {"a": 1.0})
    assert dispatcher.assign() == {"g0": [rollout_id]}
    assert dispatcher.leave("g0") == [rollout_id]
    assert dispatcher.assign() == {"g1": [rollout_id]}
    assert dispatcher.complete(rollout_id, "g0", 0).action is StalenessAction.ADMIT
    assert dispatcher.superfluous() == {"g1": [rollout_id]}
    assert dispatcher.complete(rollout_id, "g1", 0).action is StalenessAction.DROP
    assert dispatcher.superfluous() == {} and dispatcher.is_complete(0)


def test_the_loss_of_a_generator_does_not_concern_what_is_in_verification():
    dispatcher = dispatcher_of(2)
    dispatcher.add_step(0, group("a", 2), {"a": 1.0})
    assert {g: len(ids) for g, ids in dispatcher.assign().items()} == {"g0": 1, "g1": 1}
    first = group("a", 2)[0]
    dispatcher.release(first, "g0")
    assert dispatcher.leave("g0") == []
    dispatcher.reissue(first, "g0")  # the verifier found its row gone
    assert dispatcher.assign() == {"g1": [first]}
    dispatcher.reissue(first, "g0")
    assert dispatcher.assign() == {}


def test_a_batch_can_be_closed_with_what_has_arrived():
    dispatcher = dispatcher_of(1, max_rollouts=2)
    ids = group("a", 3)
    dispatcher.add_step(0, ids, {"a": 1.0})
    dispatcher.assign()
    dispatcher.complete(ids[0], "g0", 0)
    assert sorted(dispatcher.close_step(0)) == ids[1:]
    assert not dispatcher.has_pending() and dispatcher.superfluous() == {"g0": [ids[1]]}
    assert dispatcher.complete(ids[1], "g0", 0).action is StalenessAction.DROP


def test_what_cannot_be_is_refused():
    dispatcher = dispatcher_of(1)
    with pytest.raises(ValueError, match="needs an id of its own"):
        dispatcher.join("g0")
    dispatcher.leave("g0")
    with pytest.raises(ValueError, match="needs an id of its own"):
        dispatcher.join("g0")
    dispatcher.add_step(3, group("a", 1, step=3), {"a": 1.0})
    with pytest.raises(ValueError, match="rollouts of step 2 were added after step 3"):
        dispatcher.add_step(2, group("a", 1, step=2), {"a": 1.0})
    with pytest.raises(ValueError, match="of no step that was added"):
        dispatcher.complete(RolloutId(7, "a", 0), "g0", 7)
    with pytest.raises(ValueError, match="max_rollouts must be >= 1"):
        Dispatcher(StalenessPolicy(), max_rollouts=0, max_tokens=1.0)


class AnyHistory(RuleBasedStateMachine):
    """Joins, deaths, blames, new versions, late and double results, losses on the way, steps that close and open."""

    MAX_ROLLOUTS, MAX_TOKENS, K = 3, 10.0, 1

    def __init__(self):
        super().__init__()
        self.tokens: dict[tuple[int, str], float] = {}
        self.alive: dict[str, int] = {}  # version by generator
        self.held: dict[
            str, dict[RolloutId, int]
        ] = {}  # sampling version of what a generator, dead or not, may deliver
        self.making: dict[str, set[RolloutId]] = {}
        self.counted: Counter[RolloutId] = Counter()
        self.kills: Counter[RolloutId] = Counter()
        self.set_aside: set[RolloutId] = set()
        self.open: dict[int, list[RolloutId]] = {}
        self.closed: dict[int, list[RolloutId]] = {}  # what was counted of it
        self.names = 0
        self.step = -1

    @initialize(max_kills=st.integers(1, 4))
    def begin(self, max_kills):
        self.max_kills = max_kills
        policy = StalenessPolicy(self.K, "reissue")
        self.dispatcher = Dispatcher(
            policy, max_rollouts=self.MAX_ROLLOUTS, max_tokens=self.MAX_TOKENS, max_kills=max_kills
        )

    def start(self):
        for generator_id, rollout_ids in self.dispatcher.assign().items():
            for rollout_id in rollout_ids:
                assert rollout_id not in self.making[generator_id] and not self.counted[rollout_id]
                assert rollout_id not in self.set_aside and rollout_id.step in self.open
                assert rollout_id.step - self.alive[generator_id] <= self.K + 1
                self.making[generator_id].add(rollout_id)
                self.held[generator_id][rollout_id] = self.alive[generator_id]

    def is_due(self, rollout_id):
        ids = self.open.get(rollout_id.step, [])
        return rollout_id in ids and not self.counted[rollout_id] and rollout_id not in self.set_aside

    def draw_made(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, making in self.making.items() if making)))
        return name, data.draw(st.sampled_from(sorted(self.making[name])))

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.5, 3.0, 3.1, 14.0])), min_size=1, max_size=4),
        restored=st.lists(st.integers(-1, 2), max_size=3),
    )
    def add_step(self, sizes, restored):
        self.step += 1
        lengths = {f"p{index}": tokens for index, (_, tokens) in enumerate(sizes)}
        ids = [RolloutId(self.step, f"p{index}", k) for index, (n, _) in enumerate(sizes) for k in range(n)]
        self.open[self.step] = ids
        self.tokens |= {(self.step, prompt_id): tokens for prompt_id, tokens in lengths.items()}
        self.dispatcher.add_step(self.step, ids, lengths)
        for rollout_id, age in zip(ids, restored, strict=False):
            is_young = 0 <= age <= self.K
            assert self.dispatcher.restore(rollout_id, self.step - age) is is_young
            self.counted[rollout_id] += is_young
        self.start()

    @rule(version=st.integers(0, 3))
    def join(self, version):
        name = f"g{self.names}"
        self.names += 1
        self.alive[name], self.held[name], self.making[name] = version, {}, set()
        self.dispatcher.join(name, version)
        self.start()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), is_suspicious=st.booleans())
    def leave(self, data, is_suspicious):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        making = self.making.pop(name)
        del self.alive[name]
        if is_suspicious:
            self.kills.update(making)
            if len(making) == 1:
                self.set_aside |= {r for r in making if self.kills[r] >= self.max_kills and self.is_due(r)}
        lost = self.dispatcher.leave(name, is_suspicious=is_suspicious)
        assert sorted(lost) == sorted(filter(self.is_due, making))
        self.start()

    @precondition(lambda self: any(self.making.values()))
    @rule(data=st.data(), then_leaves=st.booleans())
    def blame(self, data, then_leaves):
        name, rollout_id = self.draw_made(data)
        self.making[name].discard(rollout_id)
        self.kills[rollout_id] += 1
        if self.kills[rollout_id] >= self.max_kills and self.is_due(rollout_id):
            self.set_aside.add(rollout_id)
        for _ in range(2):  # a failure that is told twice counts once
            assert self.dispatcher.blame(rollout_id, name) is (rollout_id in self.set_aside)
        if then_leaves:
            del self.alive[name], self.making[name]
            self.dispatcher.leave(name, is_suspicious=False)
            self.dispatcher.blame(rollout_id, name)
        self.start()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def confirm(self, data):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive[name] += 1
        self.dispatcher.confirm(name, self.alive[name])
        self.start()

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), again=st.booleans(), released=st.booleans())
    def deliver(self, data, again, released):
        name = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        rollout_id = data.draw(st.sampled_from(sorted(self.held[name])))
        version = self.held[name][rollout_id]
        if not again:
            del self.held[name][rollout_id]
        if released:
            self.dispatcher.release(rollout_id, name)
        was_due = self.is_due(rollout_id)
        decision = self.dispatcher.complete(rollout_id, name, version)
        self.making.get(name, set()).discard(rollout_id)
        if decision.action is StalenessAction.ADMIT:
            self.counted[rollout_id] += 1
            assert 0 <= rollout_id.step - version <= self.K
        assert was_due or decision.action is StalenessAction.DROP
        self.start()

    @precondition(lambda self: any(self.making.values()))
    @rule(data=st.data())
    def lose_result(self, data):
        name, rollout_id = self.draw_made(data)
        self.dispatcher.release(rollout_id, name)
        self.making[name].discard(rollout_id)
        self.dispatcher.reissue(rollout_id, name)
        self.start()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data):
        step = data.draw(st.sampled_from(sorted(self.open)))
        ids = self.open[step]
        aside = {rollout_id for rollout_id in ids if rollout_id in self.set_aside}
        assert self.dispatcher.set_aside(step).keys() == aside
        unfinished = self.dispatcher.unfinished(step)
        assert self.dispatcher.is_complete(step) is (not unfinished)
        counted = [rollout_id for rollout_id in ids if self.counted[rollout_id]]
        assert sorted([*unfinished, *aside, *counted]) == sorted(ids)
        assert sorted(self.dispatcher.close_step(step)) == sorted([*unfinished, *aside])
        del self.open[step]
        self.closed[step] = counted
        for rollout_id in ids:
            del self.kills[rollout_id]
        for name, rollout_ids in self.dispatcher.superfluous().items():
            for rollout_id in rollout_ids:
                self.dispatcher.release(rollout_id, name)
                self.making[name].discard(rollout_id)
        self.start()

    @precondition(lambda self: any(self.closed.values()))
    @rule(data=st.data())
    def reopen(self, data):
        step = data.draw(st.sampled_from(sorted(step for step, counted in self.closed.items() if counted)))
        ids = data.draw(st.lists(st.sampled_from(self.closed[step]), min_size=1, unique=True))
        for rollout_id in ids:
            self.counted[rollout_id] -= 1
        self.open[step] = ids
        del self.closed[step]
        lengths = {prompt_id: tokens for (at, prompt_id), tokens in self.tokens.items() if at == step}
        self.dispatcher.reopen(step, ids, lengths)
        self.start()

    @invariant()
    def each_rollout_is_counted_at_most_once(self):
        assert not self.counted or max(self.counted.values()) <= 1
        for step, ids in self.open.items():
            settled = [rollout_id for rollout_id in ids if not self.is_due(rollout_id)]
            assert sorted([*self.dispatcher.unfinished(step), *settled]) == sorted(ids)
            assert self.dispatcher.is_complete(step) == (len(settled) == len(ids))

    @invariant()
    def nobody_is_set_aside_who_was_not_alone_or_blamed(self):
        for step, ids in self.open.items():
            assert set(self.dispatcher.set_aside(step)) == self.set_aside.intersection(ids)

    @invariant()
    def bounds_are_kept(self):
        for making in self.making.values():
            tokens = sum(self.tokens[r.step, r.prompt_id] for r in making)
            assert len(making) <= self.MAX_ROLLOUTS
            assert tokens <= self.MAX_TOKENS + 1e-9 or len(making) == 1

    @invariant()
    def suspects_are_made_alone(self):
        for making in self.making.values():
            if any(self.is_due(r) and self.kills[r] >= max(self.max_kills - 1, 1) for r in making):
                assert len(making) == 1

    def teardown(self):
        """Whatever has happened, generators that live and take new versions finish everything."""
        if self.step < 0:
            return
        for step in range(self.step + 1):
            name = f"last{step}"
            self.alive[name], self.held[name], self.making[name] = step, {}, set()
            self.dispatcher.join(name, step)
        for name in [name for name in self.alive if not name.startswith("last")]:
            del self.alive[name], self.making[name]
            self.dispatcher.leave(name, is_suspicious=False)
        self.start()
        while any(self.making.values()):
            name = next(name for name, making in self.making.items() if making)
            rollout_id = next(iter(self.making[name]))
            self.making[name].discard(rollout_id)
            if self.dispatcher.complete(rollout_id, name, self.alive[name]).action is StalenessAction.ADMIT:
                self.counted[rollout_id] += 1
            self.start()
            self.suspects_are_made_alone()
        for step, ids in self.open.items():
            assert self.dispatcher.is_complete(step)
            aside = [rollout_id for rollout_id in ids if rollout_id in self.set_aside]
            assert sorted([*aside, *(r for r in ids if self.counted[r])]) == sorted(ids)


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(1, 30)), min_size=1, max_size=20), st.integers(1, 9))
def test_with_room_for_all_loads_differ_by_one_rollout_at_most(groups, num_generators):
    lengths = {f"p{index}": tokens for index, (tokens, _) in enumerate(groups)}
    ids = [r for index, (_, n) in enumerate(groups) for r in group(f"p{index}", n)]
    dispatcher = dispatcher_of(num_generators, max_rollouts=10_000)
    dispatcher.add_step(0, ids, lengths)
    loads = [sum(lengths[r.prompt_id] for r in rollouts) for rollouts in dispatcher.assign().values()]
    loads += [0.0] * (num_generators - len(loads))
    assert max(loads) - min(loads) <= max(lengths.values()) + 1e-9


def test_a_step_that_nobody_may_start_yet_gives_nobody_a_larger_share_of_the_one_before():
    """The first generator with new weights leaves half to the second, which is still loading them."""
    dispatcher = dispatcher_of(2, max_rollouts=100)
    for step in (1, 2):
        dispatcher.add_step(step, group("p", 8, step), {"p": 1})
    assert dispatcher.assign() == {}
    dispatcher.confirm("g0", 1)
    assert len(dispatcher.assign()["g0"]) == 4
    dispatcher.confirm("g1", 1)
    assert {name: len(ids) for name, ids in dispatcher.assign().items()} == {"g1": 4}


def test_what_a_checkpoint_brings_along_counts_unless_it_is_too_old():
    dispatcher = dispatcher_of(1, policy=StalenessPolicy(1), version=3)
    ids = group("a", 3, step=3)
    dispatcher.add_step(3, ids, {"a": 1.0})
    assert [dispatcher.restore(ids[0], 2), dispatcher.restore(ids[1], 1), dispatcher.restore(ids[0], 2)] == [
        True,
        False,
        False,
    ]
    assert dispatcher.assign() == {"g0": ids[1:]}
    for rollout_id in ids[1:]:
        dispatcher.complete(rollout_id, "g0", 3)
    assert dispatcher.is_complete(3)
    with pytest.raises(ValueError, match="is of no step that is open"):
        dispatcher.restore(RolloutId(4, "a", 0), 4)


def test_a_step_that_is_opened_again_goes_first_and_has_only_what_was_lost():
    dispatcher = dispatcher_of(1, max_rollouts=1, policy=StalenessPolicy(1))
    first, second = group("a", 3), group("b", 1, step=1)
    dispatcher.add_step(0, first, {"a": 1.0})
    for rollout_id in first[:2]:
        assert dispatcher.assign() == {"g0": [rollout_id]}
        dispatcher.complete(rollout_id, "g0", 0)
    assert dispatcher.close_step(0) == first[2:]
    dispatcher.add_step(1, second, {"b": 9.0})
    dispatcher.reopen(0, first[:1], {"a": 1.0})
    assert dispatcher.unfinished(0) == first[:1]
    assert dispatcher.assign() == {"g0": first[:1]}
    late = dispatcher.complete(first[2], "g0", 0)
    assert late.action is StalenessAction.DROP and "was settled before step 0 was opened again" in late.reason
    assert dispatcher.complete(first[0], "g0", 0).action is StalenessAction.ADMIT
    assert dispatcher.is_complete(0) and dispatcher.close_step(0) == []
    assert dispatcher.assign() == {"g0": second}
    dispatcher.reopen(0, first[1:2], {"a": 1.0})  # as often as it takes
    for step, state in ((0, "is still open"), (1, "is still open"), (7, "was never closed")):
        with pytest.raises(ValueError, match=f"step {step} {state}"):
            dispatcher.reopen(step, [], {})
    dispatcher.close_step(0)
    with pytest.raises(ValueError, match="rollouts of another step"):
        dispatcher.reopen(0, second, {"b": 1.0})
