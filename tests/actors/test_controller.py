from __future__ import annotations

import asyncio
import functools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from actors.allocator import AllocatorActor
from actors.controller import Controller
from actors.generator import GeneratorActor
from actors.handles import Actors, Ranks
from actors.predictor import PredictorActor
from actors.run_options import ControllerOptions
from actors.verifier import VerifierActor
from actors.waiting import wait_for
from tests.actors.fakes import EqualityVerifier, FakeLearner, FakeWriter, LocalHandle
from tests.data.support import prompt_set
from vipray.config import (
    AllocationConfig,
    CheckpointConfig,
    EvaluationConfig,
    GeneratorConfig,
    LearnerConfig,
    PipelineConfig,
    RestartConfig,
    SupervisionConfig,
    VerifierConfig,
    WeightsConfig,
)
from vipray.data.prompts import Prompt
from vipray.data.sampler import PromptSampler
from vipray.errors import (
    ActorLostError,
    GeneratorsExhaustedError,
    RolloutAbortedError,
    WaitTimeoutError,
    WeightSyncError,
)
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.predictors.paper_gp import PaperGP

PROMPTS, _ = prompt_set(
    Prompt(f"t/{q}", "even" if q % 2 == 0 else "odd", q, f"question {q}", str(100 + q)) for q in range(12)
)
SCRIPT = Script(
    success_prob={prompt_id: q / 11 for q, prompt_id in enumerate(PROMPTS.prompt_ids)},
    answer={prompt_id: PROMPTS.prompt(prompt_id).answer for prompt_id in PROMPTS.prompt_ids},
)
ALLOCATION = AllocationConfig(prompts_per_batch=4, rollout_budget=24, lower=2, upper=12)


class Recorder:
    def __init__(self):
        self.metrics, self.rows, self.evaluations, self.stages, self.spans = [], [], [], [], []
        self.recoveries = []

    def on_recovery(self, recovery):
        self.recoveries.append(recovery)

    def on_stage(self, text):
        self.stages.append(text)

    def on_step(self, metrics, allocation_rows):
        self.metrics.append(metrics)
        self.rows.append(allocation_rows)

    def on_spans(self, spans):
        self.spans += spans

    def on_evaluation(self, rows):
        self.evaluations.append(rows)


class DyingEngine(ScriptedEngine):
    """Dies, and its actor with it, at the n-th rollout."""

    def __init__(self, script, at, error=ActorDiedError):
        super().__init__(script)
        self.left, self.error = at, error

    async def generate(self, rollout_id, prompt_token_ids):
        self.left -= 1
        if self.left < 0:
            raise self.error() if self.error is ActorDiedError else self.error
        return await super().generate(rollout_id, prompt_token_ids)


class LyingEngine(ScriptedEngine):
    """Confirms another version than it was given."""

    async def load_weights(self, manifest, chunks):
        return await super().load_weights(manifest, chunks) - 1


def _same(engine, _prompts):
    return engine


def new_predictor():
    x = np.random.default_rng(0).normal(size=(len(PROMPTS), 3))
    gp = PaperGP(PROMPTS.prompt_ids, x, clip=0.05, jitter=1e-3)
    return PredictorActor(lambda _prompts: gp, PROMPTS.table)


class Starter:
    """Makes replacements: those that are given for a role, then ones that live."""

    def __init__(self, **given):
        self.given = {role: list(handles) for role, handles in given.items()}
        self.made = []

    def _next(self, role, make):
        given = self.given.get(role)
        self.made.append(role)
        return given.pop(0) if given else LocalHandle(make())

    def predictor(self):
        return self._next("predictor", new_predictor)

    def allocator(self):
        return self._next("allocator", lambda: AllocatorActor(ALLOCATION))

    def verifier(self):
        return self._next("verifier", lambda: VerifierActor(EqualityVerifier, PROMPTS.table))

    def writer(self):
        return self._next("writer", FakeWriter)

    def generator(self, generator_id):
        self.made.append("generator")
        engines = self.given.get("generator")
        engine = engines.pop(0) if engines else ScriptedEngine(SCRIPT)
        return LocalHandle(GeneratorActor(generator_id, functools.partial(_same, engine), PROMPTS.table))

    async def learners(self):
        return Ranks((self._next("learner", FakeLearner),), 1, "")


class Setup:
    """A whole run on fakes, with real predictor, allocator, generator and verifier classes."""

    def __init__(
        self,
        engines=None,
        *,
        steps=3,
        evaluate=0,
        checkpoint_every=0,
        checkpoint_dir=Path("checkpoints"),
        learner_s=0.02,
        learner=None,
        writer=None,
        pipeline=None,
        load_timeout_s=5.0,
        rollout_timeout_s=5.0,
        verdict_timeout_s=5.0,
        max_restarts=0,
        backoff_s=0.05,
        others=0,
        replacements=(),
        step_timeout_s=5.0,
        health_interval_s=60.0,
        handles=None,
        spares=None,
        state=None,
        spoil=None,
    ):
        engines = [ScriptedEngine(SCRIPT), ScriptedEngine(SCRIPT)] if engines is None else engines
        self.learner = learner or FakeLearner(learner_s)
        self.writer = writer or FakeWriter()
        self.recorder = Recorder()
        self.discarded: list[LocalHandle] = []
        self.starter = Starter(generator=replacements, **spares or {})
        given = handles or {}
        self.predictor = given.get("predictor") or LocalHandle(new_predictor())
        actors = Actors(
            predictor=self.predictor,
            allocator=given.get("allocator") or LocalHandle(AllocatorActor(ALLOCATION)),
            generators={
                f"g{index}": LocalHandle(GeneratorActor(f"g{index}", functools.partial(_same, engine), PROMPTS.table))
                for index, engine in enumerate(engines)
            },
            verifiers=given.get("verifiers")
            or [LocalHandle(VerifierActor(EqualityVerifier, PROMPTS.table)) for _ in range(2)],
            learners=Ranks((given.get("learner") or LocalHandle(self.learner),), 1, ""),
            writer=given.get("writer") or LocalHandle(self.writer),
            start=self.starter,
            started=[],
        )
        rule = RestartConfig(others, backoff_s=0.0)
        options = ControllerOptions(
            steps=steps,
            max_completion_tokens=16,
            generators=GeneratorConfig(rollout_timeout_s=rollout_timeout_s),
            supervision=SupervisionConfig(
                generators=RestartConfig(max_restarts, backoff_s=backoff_s),
                verifiers=rule,
                planners=rule,
                learners=rule,
                health_interval_s=health_interval_s,
                health_timeout_s=0.2,
            ),
            verifiers=VerifierConfig(timeout_s=verdict_timeout_s),
            learner=LearnerConfig(step_timeout_s=step_timeout_s),
            pipeline=PipelineConfig(**pipeline or {}),
            weights=WeightsConfig(timeout_s=load_timeout_s),
            checkpoints=CheckpointConfig(every_steps=checkpoint_every),
            checkpoint_dir=checkpoint_dir,
            evaluation=EvaluationConfig(rollouts_per_prompt=evaluate),
            state=state,
        )
        sampler = PromptSampler(PROMPTS.prompt_ids, ALLOCATION.prompts_per_batch, seed=0)
        if state is not None:
            sampler.load_state_dict(state.sampler)
        self.cancelled: list[object] = []
        self.controller = Controller(
            actors,
            sampler,
            PROMPTS.task_of,
            options,
            self.recorder,
            self.discarded.append,
            self.cancelled.append,
            spoil=spoil,
        )

    async def run(self):
        await self.controller.run()
        return self


def assert_batches_are_exact(setup, steps):
    assert [allocation.step for allocation, _ in setup.learner.batches] == list(range(steps))
    for allocation, rows in setup.learner.batches:
        assert allocation.n.sum() == ALLOCATION.rollout_budget
        assert allocation.n.min() >= ALLOCATION.lower and allocation.n.max() <= ALLOCATION.upper
        expected = dict(zip(allocation.prompt_ids, allocation.n.tolist(), strict=True))
        assert Counter(row["prompt_id"] for row in rows) == expected
        assert len({(row["prompt_id"], row["k"]) for row in rows}) == len(rows)
        assert all(row["reward"] is not None for row in rows)


async def test_every_batch_holds_exactly_what_was_allocated():
    setup = await Setup(steps=4).run()
    assert_batches_are_exact(setup, 4)
    assert len({tuple(allocation.n) for allocation, _ in setup.learner.batches}) > 1  # it adapts


async def test_every_rollout_carries_the_version_that_made_it():
    setup = await Setup(steps=3).run()
    for step, (_, rows) in enumerate(setup.learner.batches):
        assert {(row["policy_version_first"], row["policy_version_last"]) for row in rows} == {(step, step)}
        assert {row["generator_id"] for row in rows} == {"g0", "g1"}
    assert [metrics["policy/version"] for metrics in setup.recorder.metrics] == [0, 1, 2]


async def test_planning_the_next_step_hides_behind_training():
    setup = await Setup(steps=3, learner_s=0.2).run()
    assert setup.predictor.calls == ["predict", "observe", "predict", "observe", "predict", "observe"]
    first, *later = setup.recorder.metrics
    assert first["predictor/exposed_s"] > 0 and first["predictor/hidden_s"] == 0
    for metrics in later:
        assert metrics["predictor/hidden_s"] > 0 and metrics["allocator/hidden_s"] > 0
        assert metrics["predictor/exposed_s"] == pytest.approx(0, abs=1e-9)
        assert metrics["allocator/exposed_s"] == pytest.approx(0, abs=1e-9)
        assert metrics["allocation/wait_s"] < 0.1


async def test_the_predictor_learns_the_outcomes_of_the_step():
    setup = await Setup(steps=1).run()
    (rows,) = setup.recorder.rows
    p, _ = setup.predictor.target._predictor.predict([row["prompt_id"] for row in rows])
    rates = np.clip([row["successes"] / row["trials"] for row in rows], 0.05, 0.95)
    assert p == pytest.approx(rates)
    assert sum(row["trials"] for row in rows) == ALLOCATION.rollout_budget
    assert setup.recorder.metrics[0]["predictor/updates"] == 0  # as it stood when it predicted the first step


async def test_evaluation_uses_equal_n_and_stays_hidden_from_the_predictor():
    setup = await Setup(steps=1, evaluate=3).run()
    before, after = setup.recorder.evaluations
    assert [row["step"] for row in (before[0], after[0])] == [0, 1]
    assert len(before) == len(PROMPTS) and {row["trials"] for row in before + after} == {3}
    assert before[0]["successes"] == 0 and before[-1]["successes"] == 3  # p = 0 and p = 1
    assert setup.predictor.calls.count("observe") == 1
    assert setup.writer.written == [("evaluation", 0, 36), ("rollouts", 0, 24), ("evaluation", 1, 36)]


async def test_a_lost_generator_costs_only_what_it_had_not_finished():
    engines = [ScriptedEngine(SCRIPT), DyingEngine(SCRIPT, at=17)]
    setup = await Setup(engines, steps=3).run()
    assert_batches_are_exact(setup, 3)
    reissued = [metrics["rollouts/reissued"] for metrics in setup.recorder.metrics]
    assert reissued[0] == 0 and 1 <= reissued[1] <= 14 and reissued[2] == 0
    assert [metrics["generators/count"] for metrics in setup.recorder.metrics] == [2, 1, 1]
    (lost,) = setup.discarded
    assert lost.target._engine is engines[1]  # its engine must not go on taking up the machine


async def test_an_engine_error_that_is_left_in_the_stream_loses_the_generator_too(caplog):
    error = RayTaskError("generate", "Traceback\nEngineDeadError", ValueError("engine is dead"))
    setup = await Setup([ScriptedEngine(SCRIPT), DyingEngine(SCRIPT, at=5, error=error)], steps=1).run()
    assert_batches_are_exact(setup, 1)
    assert "generator g1 is lost" in caplog.text


async def test_the_run_ends_when_no_generator_is_left():
    error = RayTaskError("generate", "Traceback\nValueError: bad prompt", ValueError("bad prompt"))
    with pytest.raises(GeneratorsExhaustedError, match=r"of 24 rollouts .* bad prompt") as ended:
        await Setup([DyingEngine(SCRIPT, at=3, error=error), DyingEngine(SCRIPT, at=30, error=error)], steps=3).run()
    assert ended.value.__cause__ is error


async def test_a_generator_that_confirms_another_version_is_not_trusted():
    with pytest.raises(WeightSyncError, match="g0 confirmed version -1 instead of 0"):
        await Setup([LyingEngine(SCRIPT)]).run()


class SlowEngine(ScriptedEngine):
    """Takes weights only after the deadline."""

    async def load_weights(self, manifest, chunks):
        await asyncio.sleep(30 if manifest.version else 0)
        return await super().load_weights(manifest, chunks)


async def test_a_generator_that_does_not_take_a_version_in_time_is_lost_and_the_run_goes_on():
    setup = await Setup([ScriptedEngine(SCRIPT), SlowEngine(SCRIPT)], steps=2, load_timeout_s=0.3).run()
    assert_batches_are_exact(setup, 2)
    assert len(setup.discarded) == 1 and list(setup.controller._pool.handles) == ["g0"]


class FailingLearner(FakeLearner):
    def publish(self, version):
        if version:
            raise RayTaskError("publish", "Traceback\nRuntimeError: out of memory", RuntimeError("out of memory"))
        return super().publish(version)


async def test_a_learner_that_cannot_publish_is_not_blamed_on_the_generators():
    setup = Setup(learner=FailingLearner())
    with pytest.raises(RayTaskError, match="out of memory"):
        await setup.run()
    assert setup.discarded == []


class FailingWriter(FakeWriter):
    def write(self, kind, step, *rollouts):
        if step == 0:
            raise RayTaskError("write", "Traceback\nOSError: no space left", OSError("no space left"))
        return super().write(kind, step, *rollouts)


async def test_rollouts_that_cannot_be_written_end_the_run():
    with pytest.raises(RayTaskError, match="no space left"):
        await Setup(writer=FailingWriter()).run()


async def test_an_error_of_an_actor_is_not_taken_for_a_deadline():
    async def fail():
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await wait_for(fail(), 5.0, "something")
    with pytest.raises(WaitTimeoutError, match=r"waited 0\.01 s for something"):
        await wait_for(asyncio.sleep(5), 0.01, "something")


async def test_a_scorer_that_breaks_is_an_outcome_and_no_evidence():
    script = Script(SCRIPT.success_prob, dict.fromkeys(SCRIPT.answer, "explode"))
    script = Script({prompt_id: 1.0 for prompt_id in SCRIPT.success_prob}, script.answer)
    setup = await Setup([ScriptedEngine(script)], steps=1).run()
    (_, rows) = setup.learner.batches[0]
    assert {(row["outcome"], row["reward"]) for row in rows} == {("error", 0.0)}
    assert {row["trials"] for row in setup.recorder.rows[0]} == {0}


async def test_a_wait_says_what_it_waited_for():
    slow = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda _: 30.0)
    with pytest.raises(GeneratorsExhaustedError, match=r"24 of 24 .* waited 0\.1 s for a rollout of generator g0"):
        await Setup([ScriptedEngine(slow)], steps=1, rollout_timeout_s=0.1).run()
    with pytest.raises(
        ActorLostError, match=r"the verdict of a rollout.*supervision\.verifiers\.max_restarts allows more"
    ):
        await Setup(steps=1, verdict_timeout_s=0.0).run()
    with pytest.raises(ActorLostError, match="the learner's step 0"):
        await Setup(steps=1, learner_s=30.0, step_timeout_s=0.2).run()


async def test_checkpoints_are_saved_when_due_and_at_the_end_and_waited_for(tmp_path):
    setup = await Setup(steps=5, checkpoint_every=2, checkpoint_dir=tmp_path).run()
    root = str(tmp_path)
    assert setup.learner.saved == [(root, 2, 2), (root, 4, 2), (root, 5, 2)]
    assert setup.learner.finished == setup.learner.saved


async def test_generation_overlaps_with_training_and_no_token_is_older_than_allowed():
    script = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda rollout_id: 0.002 * (rollout_id.k % 5))
    setup = await Setup(
        [ScriptedEngine(script), ScriptedEngine(script)], steps=6, learner_s=0.1, pipeline={"max_staleness": 1}
    ).run()
    assert_batches_are_exact(setup, 6)
    for step, (_, rows) in enumerate(setup.learner.batches):
        assert {row["policy_version_first"] for row in rows} <= {step, step - 1}
    ages = [metrics["policy/staleness/max"] for metrics in setup.recorder.metrics]
    assert ages[0] == 0 and set(ages[2:]) == {1.0}
    train = [span for span in setup.recorder.spans if span.name == "train"]
    made = [span for span in setup.recorder.spans if span.name == "generate"]
    during = [s for s in made if any(t.start_s < s.start_s and s.end_s < t.end_s for t in train)]
    assert len(during) > 24  # whole rollouts lie within a training step
    assert all(metrics["predictor/exposed_s"] < 1e-3 for metrics in setup.recorder.metrics[1:])


async def test_on_policy_runs_never_generate_while_the_learner_trains():
    setup = await Setup(steps=3, learner_s=0.1).run()
    train = [span for span in setup.recorder.spans if span.name == "train"]
    for span in (span for span in setup.recorder.spans if span.name == "generate"):
        assert all(span.end_s <= t.start_s or span.start_s >= t.end_s for t in train)


async def test_at_a_deadline_a_batch_is_trained_with_what_arrived():
    slow = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda rollout_id: 30.0 if rollout_id.k == 1 else 0.0)
    setup = await Setup([ScriptedEngine(slow)], steps=2, pipeline={"straggler_deadline_s": 0.5}).run()
    for (allocation, rows), metrics in zip(setup.learner.batches, setup.recorder.metrics, strict=True):
        assert {rollout_id.k for rollout_id in allocation.dropped} == {1}
        assert len(rows) == 24 - 4 and metrics["rollouts/dropped"] == 4
        assert {(row["prompt_id"], row["k"]) for row in rows} == {(r.prompt_id, r.k) for r in allocation.rollout_ids()}
    assert len(setup.cancelled) == 8


class AbortingEngine(ScriptedEngine):
    """Gives up every rollout once, as an engine does with those in flight when new weights come."""

    def __init__(self, script):
        super().__init__(script)
        self.aborted = set()

    async def generate(self, rollout_id, prompt_token_ids):
        if rollout_id not in self.aborted:
            self.aborted.add(rollout_id)
            error = RolloutAbortedError(f"{rollout_id} was given up")
            raise RayTaskError("generate", "Traceback", error)
        return await super().generate(rollout_id, prompt_token_ids)


async def test_a_rollout_that_is_given_up_for_new_weights_is_made_again_and_costs_no_generator():
    setup = await Setup([AbortingEngine(SCRIPT)], steps=2).run()
    assert_batches_are_exact(setup, 2)
    assert [metrics["rollouts/reissued"] for metrics in setup.recorder.metrics] == [24, 24]
    assert setup.discarded == []


async def test_a_lost_generator_is_replaced_and_its_replacement_serves_the_newest_version():
    script = Script(SCRIPT.success_prob, SCRIPT.answer, latency_s=lambda _: 0.01)
    setup = await Setup(
        [DyingEngine(script, at=30)], steps=4, max_restarts=2, pipeline={"max_tokens_in_flight": 40}
    ).run()
    assert_batches_are_exact(setup, 4)
    makers = [{row["generator_id"] for row in rows} for _, rows in setup.learner.batches]
    assert makers == [{"g0"}, {"g0", "generator-1"}, {"generator-1"}, {"generator-1"}]
    for step, (_, rows) in enumerate(setup.learner.batches):
        assert {row["policy_version_first"] for row in rows} == {step}
    said = [text for text in setup.recorder.stages if "generator" in text]
    assert said[0] == "generator g0 is lost: restart, replacement 1 of at most 2 within 1800 s"
    assert re.fullmatch(r"generator generator-1 serves version 1, \d+\.\d s after the loss of g0", said[1])


class BrokenEngine(ScriptedEngine):
    """Does not come up."""

    async def start(self):
        raise RayTaskError("ready", "Traceback\nRuntimeError: no memory", RuntimeError("no memory"))


async def test_replacements_that_do_not_come_up_are_tried_again_until_the_budget_is_spent():
    broken = [BrokenEngine(SCRIPT), ScriptedEngine(SCRIPT)]
    setup = await Setup([DyingEngine(SCRIPT, at=5)], steps=2, max_restarts=2, replacements=broken).run()
    assert_batches_are_exact(setup, 2)
    with pytest.raises(GeneratorsExhaustedError, match=r"of 24 rollouts .* the last one: RuntimeError: no memory"):
        await Setup([DyingEngine(SCRIPT, at=5)], max_restarts=3, replacements=[BrokenEngine(SCRIPT)] * 3).run()


async def test_a_rollout_that_makes_engine_after_engine_fail_is_set_aside_and_the_run_goes_on():
    error = RayTaskError("generate", "Traceback\nValueError: bad prompt", ValueError("bad prompt"))

    class Poisoned(ScriptedEngine):
        async def generate(self, rollout_id, prompt_token_ids):
            if rollout_id.k == 2 and rollout_id.step == 1:
                raise error
            return await super().generate(rollout_id, prompt_token_ids)

    spare = [Poisoned(SCRIPT) for _ in range(19)]
    setup = await Setup([Poisoned(SCRIPT)], max_restarts=19, backoff_s=0.0, replacements=spare).run()
    assert len(setup.discarded) <= 12  # three for each of them, at most
    allocation, rows = setup.learner.batches[1]
    poisoned = {rollout_id for rollout_id in allocation.dropped}
    assert {rollout_id.k for rollout_id in poisoned} == {2} and len(poisoned) == 4
    assert len(rows) == 20 and all(row["k"] != 2 for row in rows)
    logged = [row for batch in setup.writer.rows["rollouts", 1] for row in batch.to_pylist()]
    assert Counter(row["outcome"] for row in logged)["error"] == 4 and len(logged) == 24
    assert all("3 generators" in row["reason"] for row in logged if row["outcome"] == "error")
    assert [metrics["rollouts/set_aside"] for metrics in setup.recorder.metrics] == [0, 4, 0]


async def test_generators_that_are_lost_between_steps_are_missed_at_once():
    engines = [ScriptedEngine(SCRIPT)]
    setup = Setup(engines, steps=3, learner_s=0.3, pipeline={"max_staleness": 1})

    async def lose():
        while not setup.learner.batches:
            await asyncio.sleep(0.01)
        setup.controller._pool.lose("g0", OSError("unplugged"))

    losing = asyncio.create_task(lose())
    with pytest.raises(GeneratorsExhaustedError, match="unplugged"):
        await asyncio.wait_for(setup.run(), 10)
    await losing
