"""Who is lost is replaced, and the run trains on the same batches as one in which nobody was."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, RayTaskError

from actors.allocator import AllocatorActor
from actors.faults import Fault, fault_of, is_death_of_a_node, yield_s
from actors.verifier import VerifierActor
from tests.actors.fakes import EqualityVerifier, FakeLearner, FakeWriter, LocalHandle, MortalHandle
from tests.actors.test_controller import (
    ALLOCATION,
    PROMPTS,
    SCRIPT,
    Setup,
    assert_batches_are_exact,
    new_predictor,
)
from vipray.checkpoints import CheckpointManifest, complete, find_newest
from vipray.dispatch.deadlines import WorkDeadlines
from vipray.errors import ActorLostError, CheckpointError, LearnerGroupError, WaitTimeoutError
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.run_state import RunState


def contents(learner):
    """What was trained on, step by step: rewards and completions by rollout, and the weights of the prompts."""
    return [
        (
            allocation.step,
            allocation.weight_of(),
            [(row["prompt_id"], row["k"], row["reward"], row["completion_token_ids"]) for row in rows],
        )
        for allocation, rows in learner.batches
    ]


@pytest.fixture
async def undisturbed():
    return contents((await Setup(steps=6).run()).learner)


def verifier():
    return VerifierActor(EqualityVerifier, PROMPTS.table)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("kind", "make", "method"),
    [
        ("predictor", new_predictor, "predict"),
        ("predictor", new_predictor, "observe"),
        ("allocator", lambda: AllocatorActor(ALLOCATION), "allocate"),
        ("writer", FakeWriter, "write"),
        ("verifier", verifier, "score"),
    ],
)
async def test_a_run_goes_on_with_the_same_batches_whoever_dies(kind, make, method, before, undisturbed):
    for at in (0, 2, 3):
        doomed = MortalHandle(make(), method, at, before=before)
        second = MortalHandle(make(), method, 1, before=before)
        given = {kind: doomed} if kind != "verifier" else {"verifiers": [doomed]}
        setup = await Setup(steps=6, others=9, handles=given, spares={kind: [second]}).run()
        assert doomed.is_dead and second.is_dead and setup.discarded == [doomed, second]
        assert contents(setup.learner) == undisturbed
        assert [recovery.kind for recovery in setup.recorder.recoveries] == [kind, kind]
        for recovery in setup.recorder.recoveries:
            assert recovery.lost_at_s <= recovery.reissued_at_s == recovery.serving_at_s


async def test_a_predictor_is_restored_from_a_copied_state_and_the_calls_since(monkeypatch, undisturbed):
    monkeypatch.setattr("actors.planner._CALLS_BETWEEN_STATES", 4)
    doomed = MortalHandle(new_predictor(), "predict", 5)
    setup = await Setup(steps=6, others=1, handles={"predictor": doomed}).run()
    assert contents(setup.learner) == undisturbed
    assert "state" in doomed.calls


async def test_a_hung_actor_is_taken_for_dead(undisturbed, monkeypatch):
    class Hung(AllocatorActor):
        def allocate(self, step, prediction):
            return asyncio.sleep(30) if step == 2 else super().allocate(step, prediction)

    monkeypatch.setattr("actors.planner._TIMEOUT_S", 0.5)
    handle = LocalHandle(Hung(ALLOCATION))
    setup = await Setup(steps=6, others=1, handles={"allocator": handle}).run()
    assert contents(setup.learner) == undisturbed
    assert setup.discarded == [handle]
    assert "waited 0.5 s for the allocation of step 2" in setup.recorder.recoveries[0].cause


async def test_what_no_call_shows_a_health_check_finds():
    setup = Setup(steps=3, learner_s=0.4, max_restarts=2, health_interval_s=0.05)

    async def freeze():
        while not setup.learner.batches:
            await asyncio.sleep(0.01)
        setup.controller._pool.handles["g1"].target.health = lambda: asyncio.sleep(30)  # it does nothing right now

    freezing = asyncio.create_task(freeze())
    await setup.run()
    await freezing
    assert_batches_are_exact(setup, 3)
    (recovery,) = setup.recorder.recoveries
    assert (recovery.kind, recovery.actor, recovery.num_reissued) == ("generator", "g1", 0)
    assert "waited 0.2 s for g1 to say that it is there" in recovery.cause


async def test_a_spent_budget_ends_the_run_and_names_the_setting():
    doomed = MortalHandle(AllocatorActor(ALLOCATION), "allocate", 1)
    spare = MortalHandle(AllocatorActor(ALLOCATION), "allocate", 0)
    with pytest.raises(ActorLostError, match=r"allocator is lost .*1 replacements.*planners\.max_restarts"):
        await Setup(steps=6, others=1, handles={"allocator": doomed}, spares={"allocator": [spare]}).run()


async def test_a_rollout_that_brings_verifiers_down_is_set_aside_and_the_others_are_scored():
    script = Script(SCRIPT.success_prob, {**SCRIPT.answer, "t/3": "kill"})

    class Doomed(VerifierActor):
        async def score(self, rollout):
            if "kill" in rollout.to_pylist()[0]["text"]:
                raise ActorDiedError
            return await super().score(rollout)

    def doomed():
        return LocalHandle(Doomed(EqualityVerifier, PROMPTS.table))

    setup = Setup(
        [ScriptedEngine(script)],
        steps=2,
        others=200,
        handles={"verifiers": [doomed(), doomed()]},
        spares={"verifier": [doomed() for _ in range(200)]},
    )
    await setup.run()
    rows = [row for _, rows in setup.learner.batches for row in rows]
    assert len(rows) == 48
    errors = [row for row in rows if row["outcome"] == "error"]
    assert errors and {row["reason"] for row in errors} == {"3 verifiers were lost while they scored it"}
    assert {row["prompt_id"] for row in errors} >= {"t/3"}
    assert all(row["reward"] == 0 for row in errors)


class Checkpointing(FakeLearner):
    """Names its checkpoints, as ranks do."""

    def save(self, root, step, keep_last, run):
        super().save(root, step, keep_last, run)
        complete(Path(root), CheckpointManifest(step, "m", [], [], "nearest", 0, run=dict(run)), keep_last)


@pytest.mark.parametrize(("method", "at"), [("train", 0), ("train", 3), ("publish", 0), ("publish", 4), ("save", 1)])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_new_learner_group_repeats_the_steps_since_the_checkpoint(method, at, before, undisturbed, tmp_path):
    doomed, spare = MortalHandle(Checkpointing(), method, at, before=before), LocalHandle(Checkpointing())
    if method == "save" and not before:  # the checkpoint is complete, and nobody has heard of it
        spare.target.save = lambda root, step, keep_last, run: None
    setup = await Setup(
        steps=6,
        others=1,
        checkpoint_every=2,
        checkpoint_dir=tmp_path,
        handles={"learner": doomed},
        spares={"learner": [spare]},
    ).run()
    assert setup.discarded == [doomed]
    first, second = contents(doomed.target), contents(spare.target)
    covered = int(spare.target.loaded[0].rpartition("-")[2]) if spare.target.loaded else 0
    assert [step for step, *_ in second] == list(range(covered, 6))
    assert second == undisturbed[covered:]
    assert first == undisturbed[: len(first)]
    (recovery,) = setup.recorder.recoveries
    assert recovery.kind == "learner" and "trained again on" in recovery.cause


async def test_a_rank_that_dies_while_it_waits_is_missed_before_it_is_needed(undisturbed):
    class Mortal(FakeLearner):
        """Dies right after it has published version 3."""

        is_dead = False

        async def health(self):
            if self.is_dead:
                raise ActorDiedError

        def publish(self, version):
            self.is_dead = version == 3
            return super().publish(version)

    slow = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda _: 0.5)
    doomed, spare = Mortal(), FakeLearner()
    setup = Setup(
        [ScriptedEngine(slow), ScriptedEngine(slow)],
        steps=6,
        others=1,
        health_interval_s=0.05,
        handles={"learner": LocalHandle(doomed)},
        spares={"learner": [LocalHandle(spare)]},
    )
    await setup.run()
    assert contents(spare) == undisturbed
    (recovery,) = setup.recorder.recoveries
    (generated,) = [s for s in setup.recorder.spans if s.name == "generate" and s.step == 3][:1]
    assert recovery.reissued_at_s < generated.end_s  # while its next batch was still being made


async def test_lost_rows_are_made_again_and_the_batch_is_the_same(undisturbed):
    async def gone():
        raise ObjectLostError("0" * 56, None, "")

    seen = []

    def spoil(scored):
        seen.append(scored)
        return asyncio.ensure_future(gone()) if len(seen) in (5, 6, 40, 120) else scored

    setup = await Setup(steps=6, spoil=spoil).run()
    assert contents(setup.learner) == undisturbed
    assert [recovery.num_reissued for recovery in setup.recorder.recoveries] == [2, 1, 1]
    assert sum(metrics.get("rollouts/remade", 0) for metrics in setup.recorder.metrics) == 4
    for step in range(6):
        assert sum(len(batch) for batch in setup.writer.rows["rollouts", step]) == 24


async def test_lost_weights_are_published_again():
    class Forgetful(ScriptedEngine):
        left = 1

        async def load_weights(self, manifest, chunks):
            if manifest.version == 1 and self.left:
                self.left -= 1
                raise RayTaskError("load_weights", "Traceback", ObjectLostError("0" * 56, None, ""))
            return await super().load_weights(manifest, chunks)

    setup = await Setup([Forgetful(SCRIPT), ScriptedEngine(SCRIPT)], steps=3).run()
    assert_batches_are_exact(setup, 3)
    assert setup.discarded == []
    assert [recovery.kind for recovery in setup.recorder.recoveries] == ["object"]


async def test_a_rollout_that_a_busy_generator_has_forgotten_is_made_again(monkeypatch):
    class Forgetful(ScriptedEngine):
        left = 1

        async def generate(self, rollout_id, prompt_token_ids):
            if rollout_id.step == 1 and rollout_id.k == 1 and self.left:
                self.left -= 1
                await asyncio.sleep(30)
            return await super().generate(rollout_id, prompt_token_ids)

    monkeypatch.setattr("actors.rollouts.WorkDeadlines", functools.partial(WorkDeadlines, min_s=0.4))
    slow = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda _: 0.05)
    setup = Setup([Forgetful(slow), ScriptedEngine(slow)], steps=3, pipeline={"max_tokens_in_flight": 16})
    heard = asyncio.create_task(keep_talking(setup))
    await setup.run()
    heard.cancel()
    assert_batches_are_exact(setup, 3)
    assert [metrics["rollouts/reissued"] for metrics in setup.recorder.metrics] == [0, 1, 0]
    assert setup.discarded == [] and len(setup.cancelled) == 1


async def keep_talking(setup):
    """Have every generator give signs, as if it made rollouts of other steps."""
    while True:
        await asyncio.sleep(0.05)
        rollouts = setup.controller._rollouts
        if rollouts is not None:
            rollouts._heard = dict.fromkeys(rollouts._heard, time.monotonic())


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_run_that_is_stopped_goes_on_with_the_same_batches(max_staleness, tmp_path):
    pipeline = {"max_staleness": max_staleness}
    whole = (await Setup(steps=8, pipeline=pipeline).run()).learner
    first = Setup(
        steps=8, checkpoint_every=100, checkpoint_dir=tmp_path, learner=Checkpointing(0.05), pipeline=pipeline
    )

    async def stop():
        while len(first.learner.batches) < 4:
            await asyncio.sleep(0.01)
        assert first.controller.stop()

    stopping = asyncio.create_task(stop())
    assert await first.controller.run() is False
    await stopping
    folder, _ = find_newest(tmp_path)
    assert folder is not None
    step = json.loads((folder / "checkpoint.json").read_text())["step"]
    state, warnings = RunState.read(folder / "run", step)
    assert warnings == [] and 4 <= step < 8
    second = await Setup(steps=8, state=state, pipeline=pipeline).run()
    assert [metrics["step"] for metrics in second.recorder.metrics] == list(range(step, 8))
    joined = contents(first.learner) + contents(second.learner)
    ids = [(number, [row[:2] for row in rows]) for number, _, rows in joined]
    assert [number for number, _ in ids] == list(range(8))
    if max_staleness == 0:  # else what is sampled depends on who was fast
        assert joined == contents(whole)
    for number, _, rows in joined:
        assert len({row[:2] for row in rows}) == len(rows) == 24, number


async def test_a_run_whose_steps_are_all_taken_makes_the_evaluation_that_is_missing(tmp_path):
    first = await Setup(steps=3, checkpoint_every=3, checkpoint_dir=tmp_path, learner=Checkpointing(), evaluate=2).run()
    folder, _ = find_newest(tmp_path)
    assert folder is not None
    state, _ = RunState.read(folder / "run", 3)
    assert state.plans == ()
    second = await Setup(steps=3, state=state, evaluate=2).run()
    assert second.recorder.metrics == [] and second.learner.batches == []
    assert second.recorder.evaluations == first.recorder.evaluations[1:]


async def test_a_checkpoint_that_cannot_be_written_costs_nothing_but_itself(tmp_path):
    (tmp_path / "file").write_text("")
    setup = Setup(steps=4, checkpoint_every=2, checkpoint_dir=tmp_path / "file")
    with pytest.raises(CheckpointError, match="the run itself is complete"):
        await setup.run()
    assert_batches_are_exact(setup, 4)
    said = [text for text in setup.recorder.stages if text.startswith("error:")]
    assert len(said) == 2 and "step 2 could not be written" in said[0] and "training goes on" in said[0]


def test_faults_are_told_apart():
    died, lost = ActorDiedError(), ObjectLostError("0" * 56, None, "")
    assert fault_of(died) is fault_of(WaitTimeoutError("")) is Fault.ACTOR_LOST
    assert fault_of(lost) is Fault.OBJECT_LOST
    of_argument = RayTaskError("allocate", "Traceback", died)
    assert fault_of(of_argument.as_instanceof_cause()) is fault_of(of_argument) is Fault.OBJECT_LOST
    raised = RayTaskError("predict", "Traceback", ValueError("x"))
    assert fault_of(raised) is fault_of(raised.as_instanceof_cause()) is Fault.RAISED
    assert fault_of(RayTaskError("allocate", "Traceback", raised)) is Fault.RAISED
    assert fault_of(RayTaskError("train", "Traceback", LearnerGroupError("rank 1 left"))) is Fault.ACTOR_LOST
    assert fault_of(OSError("unplugged")) is Fault.RAISED
    assert not is_death_of_a_node(died)
    gone = ActorUnavailableError("The actor is unavailable", None)
    assert is_death_of_a_node(gone)
    assert yield_s(gone, has_deputy=True) > 0 == yield_s(gone, has_deputy=False) == yield_s(died, has_deputy=True)


async def test_a_batch_that_is_set_aside_whole_and_empty_answers_end_nothing():
    error = RayTaskError("generate", "Traceback\nValueError: bad prompt", ValueError("bad prompt"))

    class Poisoned(ScriptedEngine):
        async def generate(self, rollout_id, prompt_token_ids):
            if rollout_id.step == 1:
                raise error
            completion = await super().generate(rollout_id, prompt_token_ids)
            if rollout_id.k:
                return completion
            return replace(completion, token_ids=(), logprobs=(), text="", policy_versions=())

    spare = [Poisoned(SCRIPT) for _ in range(99)]
    setup = await Setup([Poisoned(SCRIPT)], max_restarts=99, backoff_s=0.0, replacements=spare).run()
    assert [len(rows) for _, rows in setup.learner.batches] == [24, 0, 24]
    assert [metrics["rollouts/set_aside"] for metrics in setup.recorder.metrics] == [0, 24, 0]
    empty = [row for _, rows in setup.learner.batches for row in rows if row["k"] == 0]
    assert {(row["reward"], len(row["completion_token_ids"])) for row in empty} == {(0.0, 0)}
    assert {row["policy_version_first"] for row in empty} == {0, 2}
