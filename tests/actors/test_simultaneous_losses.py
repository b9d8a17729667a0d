"""Losses that meet: of two actors at once, amid a recovery, beside a stop or a checkpoint, or without end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError

from actors.planner import Planner
from actors.predictor import PredictorActor
from actors.seat import Seat, Supervision
from actors.verifier import VerifierActor
from tests.actors.fakes import EqualityVerifier, FakeLearner, FakeWriter, LocalHandle, MortalHandle
from tests.actors.test_controller import PROMPTS, SCRIPT, DyingEngine, Setup, new_predictor
from tests.actors.test_supervision import Checkpointing, contents
from vipray.checkpoints import CheckpointManifest, complete
from vipray.dispatch.restarts import RestartPolicy
from vipray.errors import ActorLostError, GeneratorsExhaustedError, ObjectGoneError
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.predictors.beta import DiscountedBeta
from vipray.run_state import RunState

LOST = ObjectLostError("0" * 56, None, "")


def lost_reference():
    """A reference to an object that is nowhere any more."""
    reference = asyncio.get_running_loop().create_future()
    reference.set_exception(LOST)
    reference.exception()  # nobody's business, unless somebody asks for it
    return reference


class InTraining(Checkpointing):
    """Has something happen while it trains on a step."""

    def __init__(self, step, happen):
        super().__init__()
        self.step, self.happen = step, happen

    async def train(self, allocation, *rollouts):
        if allocation.step == self.step:
            await self.happen()
        return await super().train(allocation, *rollouts)


def verifier():
    return VerifierActor(EqualityVerifier, PROMPTS.table)


@pytest.fixture
async def undisturbed():
    return await Setup(steps=6).run()


# The learner


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (100, [4])])
async def test_a_stop_leaves_one_checkpoint_of_its_step_whether_one_is_due_or_not(every, saved, tmp_path):
    async def stop():
        assert setup.controller.stop()

    learner = InTraining(3, stop)
    setup = Setup(steps=8, checkpoint_every=every, checkpoint_dir=tmp_path, learner=learner)
    assert await setup.controller.run() is False
    assert [step for _, step, _ in learner.saved] == saved
    assert learner.finished == learner.saved
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-{step:06d}" for step in saved[-2:]]
    assert all((path / "run").is_dir() for path in tmp_path.iterdir())


async def test_outcomes_are_observed_once_when_the_learner_dies_with_the_next_plan_ready():
    def beta():  # told twice, it would predict otherwise
        counts = DiscountedBeta(PROMPTS.prompt_ids, half_life=8)
        return LocalHandle(PredictorActor(lambda _: counts, PROMPTS.table))

    async def die():
        await asyncio.sleep(0.1)  # until the next step is planned
        raise ActorDiedError

    whole = await Setup(steps=9, handles={"predictor": beta()}).run()
    handles = {"learner": LocalHandle(InTraining(2, die)), "predictor": beta()}
    spare = FakeLearner()
    setup = await Setup(steps=9, others=1, handles=handles, spares={"learner": [LocalHandle(spare)]}).run()
    assert contents(spare) == contents(whole.learner)
    assert setup.predictor.calls.count("observe") == whole.predictor.calls.count("observe") == 9
    assert setup.recorder.rows == whole.recorder.rows


async def test_writer_and_learner_die_together(undisturbed):
    class Doomed(FakeWriter):
        def __init__(self):
            super().__init__()
            self.dies = asyncio.Event()

        def write(self, kind, step, *rollouts):
            return self._die() if step == 2 else super().write(kind, step, *rollouts)

        async def _die(self):
            await self.dies.wait()
            raise ActorDiedError

    async def die():
        first.dies.set()
        raise ActorDiedError

    first, second, spare = Doomed(), FakeWriter(), FakeLearner()
    second.rows = first.rows  # one disk
    handles = {"learner": LocalHandle(InTraining(2, die)), "writer": LocalHandle(first)}
    spares = {"learner": [LocalHandle(spare)], "writer": [LocalHandle(second)]}
    setup = await Setup(steps=6, others=1, handles=handles, spares=spares).run()
    assert contents(spare) == contents(undisturbed.learner)
    assert first.written == [("rollouts", step, 24) for step in (0, 1)]
    assert second.written == [("rollouts", step, 24) for step in (2, 3, 4, 5)]
    assert sorted(recovery.kind for recovery in setup.recorder.recoveries) == ["learner", "writer"]


@pytest.mark.parametrize(
    ("doomed", "num_saved_again"),
    [
        (lambda: MortalHandle(FakeLearner(), "finish_saving", 0), 1),
        (lambda: MortalHandle(Checkpointing(), "finish_saving", 0), 0),
        (lambda: MortalHandle(Checkpointing(), "save", 0, before=False), 0),
        (lambda: MortalHandle(Checkpointing(), "save", 0), 1),
    ],
    ids=["unnamed", "named", "named and unheard of", "not begun"],
)
async def test_the_last_checkpoint_is_complete_whenever_its_ranks_die(doomed, num_saved_again, tmp_path):
    first, spare = doomed(), Checkpointing()
    setup = Setup(
        steps=4,
        others=1,
        checkpoint_every=100,
        checkpoint_dir=tmp_path,
        handles={"learner": first},
        spares={"learner": [LocalHandle(spare)]},
    )
    assert await setup.controller.run() is True
    assert setup.discarded == [first]
    assert spare.saved == [(str(tmp_path), 4, 2)] * num_saved_again
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]
    assert (tmp_path / "step-000004" / "run").is_dir()


@pytest.mark.parametrize(("every", "loaded"), [(0, []), (2, ["step-000002"])])
async def test_a_new_learner_group_loads_no_checkpoint_of_another_run(every, loaded, tmp_path, undisturbed):
    (tmp_path / ".step-000100.partial").mkdir()
    complete(tmp_path, CheckpointManifest(100, "m", [], [], "nearest", 0), 2)
    doomed, spare = MortalHandle(Checkpointing(), "train", 3), Checkpointing()
    await Setup(
        steps=6,
        others=1,
        checkpoint_every=every,
        checkpoint_dir=tmp_path,
        handles={"learner": doomed},
        spares={"learner": [LocalHandle(spare)]},
    ).run()
    assert spare.loaded == [str(tmp_path / name) for name in loaded]
    assert contents(spare) == contents(undisturbed.learner)[2 if loaded else 0 :]


# Verifiers


async def test_verifiers_are_used_evenly():
    handles = [LocalHandle(verifier()) for _ in range(3)]
    await Setup(steps=3, handles={"verifiers": handles}).run()
    assert [handle.calls.count("score") for handle in handles] == [24, 24, 24]


async def test_a_verifier_without_replacement_ends_nothing_while_another_lives(undisturbed):
    doomed, other = MortalHandle(verifier(), "score", 3), LocalHandle(verifier())
    setup = await Setup(steps=6, others=0, handles={"verifiers": [doomed, other]}).run()
    assert contents(setup.learner) == contents(undisturbed.learner)
    assert setup.discarded == [doomed] and setup.recorder.recoveries == []


@pytest.mark.parametrize("without", [0, 1])
async def test_a_verifier_without_replacement_ends_nothing_while_another_is_coming(without, undisturbed):
    class Slow(VerifierActor):
        async def ready(self):
            await asyncio.sleep(0.2)

    async def lose_both():
        seats = setup.controller._actors.verifiers.seats
        for seat in (seats[1 - without], seats[without]):  # the first to be missed has the only replacement
            seat.lose(seat.handle, ActorDiedError())
            await asyncio.sleep(0)

    slow = LocalHandle(Slow(EqualityVerifier, PROMPTS.table))
    learner = InTraining(0, lose_both)
    setup = Setup(steps=6, others=1, learner=learner, spares={"verifier": [slow]})
    await setup.run()
    assert contents(learner) == contents(undisturbed.learner)
    assert [recovery.actor for recovery in setup.recorder.recoveries] == [f"verifier {1 - without}"]
    assert slow.calls.count("score") == 5 * 24


async def test_two_verifiers_die_with_a_budget_of_one(undisturbed):
    doomed = [MortalHandle(verifier(), "score", 3) for _ in range(2)]
    setup = await Setup(steps=6, others=1, handles={"verifiers": doomed}).run()
    assert contents(setup.learner) == contents(undisturbed.learner)
    assert len(setup.discarded) == 2 and len(setup.recorder.recoveries) == 1
    assert all(row["outcome"] != "error" for _, rows in setup.learner.batches for row in rows)


class Fragile(VerifierActor):
    """Dies with all that it is scoring: at a rollout whose text says so, or after `left`, once it has several."""

    def __init__(self, left=10**9):
        super().__init__(EqualityVerifier, PROMPTS.table)
        self.left, self.num_scoring, self.is_dead = left, 0, False

    async def score(self, rollout):
        self.left -= 1
        self.num_scoring += 1
        is_killed = self.left <= 0 and self.num_scoring > 1
        self.is_dead = self.is_dead or is_killed or "kill" in rollout.to_pylist()[0]["text"]
        await asyncio.sleep(0.001)  # with others beside it
        self.num_scoring -= 1
        if self.is_dead:
            raise ActorDiedError
        return await super().score(rollout)


async def test_of_all_rollouts_that_were_lost_with_verifiers_only_the_one_to_blame_is_set_aside():
    script = Script(SCRIPT.success_prob, {**SCRIPT.answer, "t/3": "kill"})
    setup = await Setup(
        [ScriptedEngine(script)],
        steps=2,
        others=200,
        handles={"verifiers": [LocalHandle(Fragile()) for _ in range(2)]},
        spares={"verifier": [LocalHandle(Fragile()) for _ in range(200)]},
    ).run()
    rows = [row for _, rows in setup.learner.batches for row in rows]
    assert len(rows) == 48
    to_blame = [row for row in rows if row["prompt_id"] == "t/3"]
    assert to_blame and [row for row in rows if row["outcome"] == "error"] == to_blame
    assert len(setup.discarded) <= 3 * len(to_blame)


async def test_no_rollout_is_set_aside_for_verifiers_that_die_only_while_they_score_several(undisturbed):
    def doomed(number):
        return LocalHandle(Fragile(left=3 + number % 4))

    setup = await Setup(
        steps=6,
        others=200,
        handles={"verifiers": [doomed(number) for number in range(2)]},
        spares={"verifier": [doomed(number) for number in range(200)]},
    ).run()
    assert len(setup.discarded) > 15
    assert contents(setup.learner) == contents(undisturbed.learner)
    assert Counter(row["outcome"] for _, rows in setup.learner.batches for row in rows)["error"] == 0


# Rows and weights


class Forgetful(ScriptedEngine):
    """Loses the weights of version 1, as often as it is told to."""

    def __init__(self, times):
        super().__init__(SCRIPT)
        self.times = times

    async def load_weights(self, manifest, chunks):
        if manifest.version == 1 and self.times:
            self.times -= 1
            raise RayTaskError("load_weights", "Traceback", LOST)
        return await super().load_weights(manifest, chunks)


async def test_an_error_in_publishing_lost_weights_again_ends_the_run():
    learner = MortalHandle(FakeLearner(), "publish", 2)  # versions 0 and 1, and 1 again
    with pytest.raises(ActorLostError, match=r"the learner group is lost .*supervision\.learners\.max_restarts"):
        await Setup([Forgetful(1)], handles={"learner": learner}).run()


async def test_weights_that_are_always_lost_end_the_run_and_name_the_version():
    setup = Setup([Forgetful(10**9)])
    with pytest.raises(ObjectGoneError, match=r"weights of version 1 were lost 8 times"):
        await setup.run()
    assert [recovery.actor for recovery in setup.recorder.recoveries] == ["version 1"] * 8


async def test_rows_that_are_always_lost_end_the_run_and_name_the_step():
    seen = []

    def spoil(scored):
        seen.append(scored)
        return lost_reference() if len(seen) == 1 or len(seen) > 24 else scored

    setup = Setup(spoil=spoil)
    with pytest.raises(ObjectGoneError, match="rows of step 0 were lost 9 times"):
        await setup.run()
    assert [recovery.num_reissued for recovery in setup.recorder.recoveries] == [1] * 8


async def test_rows_that_nobody_is_left_to_make_again_end_the_run():
    seen = []

    def spoil(scored):
        seen.append(scored)
        if len(seen) < 24:
            return scored
        unplug = setup.controller._pool.lose
        asyncio.get_running_loop().call_soon(unplug, "g0", OSError("unplugged"))
        return lost_reference()

    setup = Setup([ScriptedEngine(SCRIPT)], steps=1, spoil=spoil)
    with pytest.raises(GeneratorsExhaustedError, match=r"1 of 1 rollouts .*unplugged"):
        await asyncio.wait_for(setup.run(), 10)


async def test_a_stop_beside_a_lost_row_leaves_a_checkpoint_and_the_row_is_made_again(tmp_path, undisturbed):
    seen = []

    def spoil(scored):
        seen.append(scored)
        if len(seen) != 4 * 24 + 3:  # the third of step 4
            return scored
        assert first.controller.stop()
        return lost_reference()

    first = Setup(steps=6, checkpoint_every=100, checkpoint_dir=tmp_path, learner=Checkpointing(), spoil=spoil)
    assert await first.controller.run() is False
    folder = tmp_path / "step-000004"
    assert json.loads((folder / "checkpoint.json").read_text())["step"] == 4
    state, warnings = RunState.read(folder / "run", 4)
    assert warnings == [] and [plan.step for plan in state.plans] == [4]
    second = await Setup(steps=6, state=state).run()
    assert contents(first.learner) + contents(second.learner) == contents(undisturbed.learner)


# Generators


async def test_two_replacements_that_fail_in_the_same_turn_end_the_run():
    both = asyncio.Event()
    started = []

    class Broken(ScriptedEngine):
        async def start(self):
            started.append(self)
            if len(started) == 2:
                asyncio.get_running_loop().call_soon(both.set)
            await both.wait()
            raise RayTaskError("ready", "Traceback\nRuntimeError: no memory", RuntimeError("no memory"))

    engines, replacements = [DyingEngine(SCRIPT, at=5) for _ in range(2)], [Broken(SCRIPT) for _ in range(2)]
    setup = Setup(engines, steps=2, max_restarts=2, replacements=replacements)
    with pytest.raises(GeneratorsExhaustedError, match="no memory"):
        await asyncio.wait_for(setup.run(), 10)
    assert started == replacements


# Planning


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("first", "second"), [("state", None), ("state", "load_state"), ("predict", "load_state")])
async def test_a_predictor_dies_while_its_state_is_copied_or_restored(first, second, before, monkeypatch, undisturbed):
    monkeypatch.setattr("actors.planner._CALLS_BETWEEN_STATES", 3)
    doomed = MortalHandle(new_predictor(), first, 1 if first == "state" else 4, before=before)
    spare = MortalHandle(new_predictor(), second, 0, before=before)
    setup = await Setup(steps=6, others=9, handles={"predictor": doomed}, spares={"predictor": [spare]}).run()
    assert setup.discarded == [doomed, spare][: 1 + (second is not None)]
    assert contents(setup.learner) == contents(undisturbed.learner)
    assert setup.recorder.rows == undisturbed.recorder.rows


class Remembering:
    """A predictor whose state, and prediction, is what it has observed."""

    def __init__(self, load_s=0.0):
        self.seen, self.load_s = (), load_s

    def observe(self, prompt_ids, successes, trials):
        self.seen += tuple(prompt_ids)

    def predict(self, prompt_ids):
        return self.seen

    def state(self):
        return self.seen

    async def load_state(self, state):
        await asyncio.sleep(self.load_s)
        self.seen = state

    def ready(self):
        pass


class LateStates(LocalHandle):
    """Its answers to `state` are under way for some time, and come even if it is gone by then."""

    def __init__(self, *delays):
        super().__init__(Remembering())
        self.delays = list(delays)

    def __getattr__(self, name):
        method = super().__getattr__(name)
        if name != "state":
            return method

        def remote():
            return asyncio.ensure_future(late(method.remote(), self.delays.pop(0)))

        return SimpleNamespace(remote=remote)


async def late(reference, delay_s):
    answer = await reference
    await asyncio.sleep(delay_s)
    return answer


class PassingOn:
    """An allocator that allocates what was predicted."""

    def allocate(self, step, prediction):
        return prediction


def seat(name, handle, *spares):
    left = list(spares)
    supervision = Supervision(name, "x", RestartPolicy(9, 100.0, 0.0), 5.0, lambda _: None, lambda _: None)
    return Seat(name, handle, lambda: left.pop(0), supervision)


def planner(predictor):
    return Planner(predictor, seat("allocator", LocalHandle(PassingOn())))


async def prediction(planner):
    _, seen = await planner.finished(planner.begin(9, ["q"]))
    return seen


async def test_a_state_that_arrives_while_another_predictor_is_restored_takes_no_call_away():
    old, new = LateStates(0.0, 0.05), LocalHandle(Remembering(load_s=0.1))
    predictor = seat("predictor", old, new)
    planning = planner(predictor)
    planning.observe(["a"], 0, 0)
    assert await planning.state() == ("a",)
    planning.observe(["b"], 0, 0)
    copying = asyncio.create_task(planning.state())
    await asyncio.sleep(0.01)
    predictor.lose(old, ActorDiedError())
    assert await copying == ("a", "b")
    assert await predictor.holder() is new
    assert await prediction(planning) == ("a", "b")


@pytest.mark.parametrize("delays", [(0.05, 0.0), (0.02, 0.08)], ids=["out of order", "in order"])
async def test_two_copies_of_the_state_at_once_count_every_observation_once(delays):
    old, new = LateStates(*delays), LocalHandle(Remembering())
    predictor = seat("predictor", old, new)
    planning = planner(predictor)
    planning.observe(["a"], 0, 0)
    copies = [asyncio.create_task(planning.state())]
    await asyncio.sleep(0.01)
    planning.observe(["b"], 0, 0)
    copies.append(asyncio.create_task(planning.state()))
    await asyncio.sleep(0.03)
    planning.observe(["c"], 0, 0)
    assert await asyncio.gather(*copies) == [("a",), ("a", "b")]
    predictor.lose(old, ActorDiedError())
    assert await predictor.holder() is new
    assert await prediction(planning) == ("a", "b", "c")


async def test_a_plan_that_is_finished_is_not_asked_for_again():
    predictor = seat("predictor", LocalHandle(Remembering()))
    planning = planner(predictor)
    plan = planning.begin(0, ["q"])
    result = await planning.finished(plan)
    plan.prediction.reference = plan.allocation = lost_reference()  # they were on a node that died
    assert await planning.finished(plan) is result
    assert predictor.is_held


# Health


async def test_an_error_of_a_health_check_that_is_no_loss_ends_the_run():
    class Confused(FakeWriter):
        async def health(self):
            raise RayTaskError("health", "Traceback\nValueError: no such thing", ValueError("no such thing"))

    setup = Setup(writer=Confused(), learner_s=0.2, health_interval_s=0.02)
    with pytest.raises(RayTaskError, match="no such thing"):
        await setup.run()
    assert setup.discarded == []
