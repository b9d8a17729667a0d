"""The controller: one loop for each stage of a step, connected by references and bounded queues.

    plan ──► [plans] ──► open ──► rollouts of the step ──► collect ──► [batches] ──► learn ──► publish
     ▲                                    ▲                                            │          │
     └──────────── observed ◄─────────────┼────────────────────────────────────────────┘          │
                                          └──── version confirmed by a generator ◄────────────────┘

What unblocks each loop:

    plan      the outcomes that step t may know: of step t - 1, or of t - 2 where generation overlaps with training;
              the predictor is told of them once the learner trains on them
    open      an allocation; its rollouts start at each generator that has confirmed a version young enough
    collect   the last verdict of step t
    learn     the batch of step t; then version t + 1 goes out, to each generator as soon as that can take it

`pipeline.max_staleness` = 0 is on-policy: rollouts of t + 1 need version t + 1, and only planning hides behind
training. With k ≥ 1 they start on version t + 1 - k, while the learner trains on what came before. Either way the
dispatcher enforces the bound when a rollout starts and again before it enters a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from actors.generator_pool import GeneratorPool, Replacements
from actors.handles import Actors
from actors.learner_group import LearnerGroup, is_checkpoint_due
from actors.rollouts import RolloutBatch, RolloutLimits, RolloutMaker
from actors.timeline_recorder import TimelineRecorder
from actors.waiting import wait_for
from vipray.config import (
    CheckpointConfig,
    EvaluationConfig,
    GeneratorConfig,
    LearnerConfig,
    PipelineConfig,
    SupervisionConfig,
    VerifierConfig,
    WeightsConfig,
)
from vipray.data.sampler import PromptSampler
from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.lengths import LengthModel
from vipray.dispatch.restarts import RestartPolicy
from vipray.dispatch.staleness import StalenessPolicy
from vipray.records import RolloutId, Span, TimelineSpan
from vipray.step_metrics import Planning, allocation_rows, count_evidence, reward_metrics, staleness

_PLANNING_TIMEOUT_S = 300.0  # prediction and allocation take milliseconds; a GPU's first kernels take seconds
_WRITING_TIMEOUT_S = 300.0
_COVERS = 8  # stretches of work that are remembered: those of a few steps


class RunObserver(Protocol):
    """Who is told what happens: the log, the terminal."""

    def on_stage(self, text: str) -> None:
        """Something begins that takes a while."""

    def on_step(self, metrics: Mapping[str, float], allocation_rows: list[dict[str, Any]]) -> None:
        """A step is complete."""

    def on_spans(self, spans: list[TimelineSpan]) -> None:
        """Actors were at work."""

    def on_evaluation(self, rows: list[dict[str, Any]]) -> None:
        """An evaluation is complete; one row a prompt (`EVALUATION_SCHEMA`)."""


@dataclass(frozen=True)
class ControllerOptions:
    """The parts of the configuration that the controller acts on."""

    steps: int
    max_completion_tokens: int
    generators: GeneratorConfig
    verifiers: VerifierConfig
    learner: LearnerConfig
    pipeline: PipelineConfig
    weights: WeightsConfig
    supervision: SupervisionConfig
    checkpoints: CheckpointConfig
    checkpoint_dir: Path
    evaluation: EvaluationConfig


@dataclass(frozen=True)
class _Plan:
    """References of a step's planning, under way."""

    step: int
    observed: Any  # None while there is nothing to observe
    prediction: Any
    allocation: Any


@dataclass(frozen=True)
class _Collected:
    """A step's batch, ready to be trained on."""

    planning: Planning
    batch: RolloutBatch


class Controller:
    """Drives a run to its end.

    Args:
        actors: handles of everything that works.
        sampler: decides which prompts a step trains on.
        task_of: task label by prompt id, of every prompt.
        options: settings.
        observer: is told of stages, steps and evaluations.
        discard: ends the actor of a lost generator at once.
        cancel: gives up a call that nobody waits for any more.
        clock: wall-clock seconds, comparable with the spans of actors.
    """

    def __init__(
        self,
        actors: Actors,
        sampler: PromptSampler,
        task_of: Mapping[str, str],
        options: ControllerOptions,
        observer: RunObserver,
        discard: Callable[[Any], None],
        cancel: Callable[[Any], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._actors = actors
        self._sampler = sampler
        self._task_of = task_of
        self._options = options
        self._observer = observer
        self._cancel = cancel
        self._clock = clock
        self._timeline = TimelineRecorder()
        generators = options.generators
        replacements = Replacements(
            start=actors.start_generator,
            policy=RestartPolicy.of(options.supervision.generators),
            start_timeout_s=generators.start_timeout_s,
            report=observer.on_stage,
        )
        load_timeout_s = options.weights.timeout_s
        if options.weights.in_flight == "wait":  # for the rollouts under way
            load_timeout_s += generators.rollout_timeout_s
        self._pool = GeneratorPool(actors.generators, discard, load_timeout_s, replacements, clock)
        self._pool.listeners.append(self._timeline)
        self._learner = LearnerGroup(
            actors.learners,
            actors.num_chunks,
            step_timeout_s=options.learner.step_timeout_s,
            publish_timeout_s=options.weights.timeout_s,
        )
        self._lengths = LengthModel(task_of, prior_tokens=options.max_completion_tokens / 2)
        self._plans: asyncio.Queue[_Plan] = asyncio.Queue(maxsize=1)
        self._opened: asyncio.Queue[Planning] = asyncio.Queue(maxsize=1)
        self._batches: asyncio.Queue[_Collected] = asyncio.Queue(maxsize=max(1, options.pipeline.max_staleness))
        self._observations: dict[int, asyncio.Future[Any]] = {}  # by step: the call by which it was observed
        self._covers: list[Span] = []  # recent training, publishing and generation, behind which planning can hide
        self._writing: Any = None

    async def run(self) -> None:
        """Publish the initial weights, evaluate, train for all steps, evaluate."""
        self._observer.on_stage("publishing the initial weights")
        try:
            self._pool.publish(await self._learner.publish(0))
            await self._pool.settled()
            await self._evaluate(0)
            await self._train()
            await self._pool.settled()
            await self._evaluate(self._options.steps)
            await self._written()
        finally:
            self._pool.close()
            self._observer.on_spans(self._timeline.flush())

    async def _train(self) -> None:
        policy = StalenessPolicy(self._options.pipeline.max_staleness, self._options.pipeline.on_stale)
        rollouts = self._rollout_maker(policy, self._timeline, self._options.pipeline.straggler_deadline_s)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._plan_loop())
                group.create_task(self._open_loop(rollouts))
                group.create_task(self._collect_loop(rollouts))
                group.create_task(self._learn_loop())
        except ExceptionGroup as errors:
            first = _first(errors)
            raise first from first.__cause__
        finally:
            rollouts.close()

    async def _plan_loop(self) -> None:
        """Start planning each step as soon as it may know what it needs. The predictor works in order."""
        lag = 1 if self._options.pipeline.max_staleness == 0 else 2
        for step in range(self._options.steps):
            observed = await self._observation(step - lag) if step >= lag else None
            self._observations.pop(step - lag, None)
            prediction = self._actors.predictor.predict.remote(self._sampler.next_batch())
            allocation = self._actors.allocator.allocate.remote(step, prediction)
            await self._plans.put(_Plan(step, observed, prediction, allocation))

    async def _open_loop(self, rollouts: RolloutMaker) -> None:
        """Open each step once its allocation is there."""
        for _ in range(self._options.steps):
            planning = await self._planned(await self._plans.get())
            ids = planning.allocation.prompt_ids
            expected = dict(zip(ids, self._lengths.expect(ids).tolist(), strict=True))
            rollouts.open(planning.allocation.step, planning.allocation.rollout_ids(), expected)
            await self._opened.put(planning)

    async def _collect_loop(self, rollouts: RolloutMaker) -> None:
        """Take each step's batch when it is complete; tell the predictor at once."""
        for step in range(self._options.steps):
            planning = await self._opened.get()
            batch = await rollouts.finished(step)
            planning = replace(planning, allocation=replace(planning.allocation, dropped=batch.dropped))
            lengths = [verdict.num_tokens for verdict in batch.verdicts]
            self._lengths.observe([verdict.rollout_id.prompt_id for verdict in batch.verdicts], lengths)
            self._covers.append(batch.span)
            await self._batches.put(_Collected(planning, batch))

    async def _learn_loop(self) -> None:
        """Train on each batch in order, and publish."""
        checkpoints = self._options.checkpoints
        started = published_at = self._clock()
        for step in range(self._options.steps):
            waited = self._clock()
            collected = await self._batches.get()
            planning, batch = collected.planning, collected.batch
            await self._write("rollouts", step, batch)
            dispatched = self._clock()
            training = self._learner.start_training(planning.allocation, batch.references)
            prompt_ids = planning.allocation.prompt_ids
            successes, trials = count_evidence(prompt_ids, batch.verdicts)
            # Not before training is under way: only the next plan needs it, and that waits for nothing else.
            observed = self._actors.predictor.observe.remote(prompt_ids, successes, trials)
            self._observation(step).set_result(observed)
            learner_metrics, busy_s = await self._learner.trained(training, step)
            trained_at = self._clock()
            self._pool.publish(await self._learner.publish(step + 1))
            ended = self._clock()
            self._covers = [*self._covers[-_COVERS:], Span(dispatched, ended)]
            self._timeline.add("learner", "train", Span(dispatched, trained_at), step=step)
            self._timeline.add("learner", "publish", Span(trained_at, ended), version=step + 1)
            if is_checkpoint_due(checkpoints, step + 1, self._options.steps):
                saving_from = self._clock()
                await self._learner.save(self._options.checkpoint_dir, step + 1, checkpoints.keep_last)
                self._timeline.add("learner", "save", Span(saving_from, self._clock()), step=step)
            metrics = {
                "step": step,
                "step/time_s": ended - started,
                "time/generation_s": batch.span.duration_s,
                "time/training_s": trained_at - dispatched,
                "time/publishing_s": ended - trained_at,
                "time/loading_s": max(0.0, batch.span.start_s - published_at),
                "learner/busy_s": busy_s,
                "learner/wait_s": dispatched - waited,
                **planning.metrics(self._covers),
                **staleness(step, batch.verdicts),
                **reward_metrics(batch.verdicts, self._task_of),
                **batch.metrics,
                **learner_metrics,
                "generators/count": len(self._pool.handles),
                "lengths/absolute_error": self._lengths.metrics()["absolute_error"],
            }
            self._observer.on_step(metrics, allocation_rows(planning.allocation, successes, trials, self._task_of))
            self._observer.on_spans(self._timeline.flush())
            started = published_at = ended
        await wait_for(observed, _PLANNING_TIMEOUT_S, "the predictor's last observation")
        await self._learner.finish_saving()

    def _observation(self, step: int) -> asyncio.Future[Any]:
        if step not in self._observations:
            self._observations[step] = asyncio.get_running_loop().create_future()
        return self._observations[step]

    async def _planned(self, plan: _Plan) -> Planning:
        """Wait for a plan and account for what the wait cost."""
        start = self._clock()
        allocation = await wait_for(plan.allocation, _PLANNING_TIMEOUT_S, "the allocation of the step")
        wait_s = self._clock() - start
        prediction = await wait_for(plan.prediction, _PLANNING_TIMEOUT_S, "the prediction of the step")
        spans = [prediction.span]
        if plan.observed is not None:
            spans.append(await wait_for(plan.observed, _PLANNING_TIMEOUT_S, "the predictor's observation"))
            self._timeline.add("predictor", "observe", spans[-1], step=plan.step)
        self._timeline.add("predictor", "predict", prediction.span, step=plan.step)
        self._timeline.add("allocator", "allocate", allocation.span, step=plan.step)
        return Planning(allocation, tuple(spans), wait_s, prediction.metrics)

    async def _evaluate(self, step: int) -> None:
        """Evaluate every prompt with equal n, on the version of `step`. The predictor does not see these outcomes."""
        n = self._options.evaluation.rollouts_per_prompt
        if not n:
            return
        prompt_ids = list(self._task_of)
        self._observer.on_stage(f"evaluating {len(prompt_ids)} prompts with {n} rollouts each after {step} steps")
        rollouts = self._rollout_maker(StalenessPolicy(0))  # the timeline is of training
        expected = dict(zip(prompt_ids, self._lengths.expect(prompt_ids).tolist(), strict=True))
        try:
            rollouts.open(step, [RolloutId(step, prompt_id, k) for prompt_id in prompt_ids for k in range(n)], expected)
            batch = await rollouts.finished(step)
        finally:
            rollouts.close()
        await self._write("evaluation", step, batch)
        successes, trials = count_evidence(prompt_ids, batch.verdicts)
        self._observer.on_evaluation(
            [
                {"step": step, "prompt_id": p, "task": self._task_of[p], "successes": s, "trials": t}
                for p, s, t in zip(prompt_ids, successes.tolist(), trials.tolist(), strict=True)
            ]
        )

    def _rollout_maker(
        self, policy: StalenessPolicy, recorder: TimelineRecorder | None = None, straggler_s: float | None = None
    ) -> RolloutMaker:
        max_rollouts = self._options.generators.max_num_seqs
        max_tokens = self._options.pipeline.max_tokens_in_flight or max_rollouts * self._options.max_completion_tokens
        return RolloutMaker(
            self._pool,
            self._actors.verifiers,
            Dispatcher(policy, max_rollouts=max_rollouts, max_tokens=max_tokens),
            RolloutLimits(self._options.generators.rollout_timeout_s, self._options.verifiers.timeout_s, straggler_s),
            self._cancel,
            recorder,
            self._clock,
        )

    async def _write(self, kind: str, step: int, batch: RolloutBatch) -> None:
        """Have a batch written, once the one before it is on disk: an error of the writer is not passed over."""
        await self._written()
        self._writing = self._actors.writer.write.remote(kind, step, *batch.references)

    async def _written(self) -> None:
        """Wait for the last batch to be on disk."""
        if self._writing is not None:
            await wait_for(self._writing, _WRITING_TIMEOUT_S, "the rollouts to be written")


def _first(errors: ExceptionGroup) -> Exception:
    """The first error of a group of groups: the others are its company or its consequence."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
