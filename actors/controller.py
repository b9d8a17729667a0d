"""The controller: one step after the other, with the next allocation made behind the training of this one.

    generators │ rollouts t                                    │ rollouts t+1
    verifiers  │   · score t as they end ·                     │
    learner    │                        │ train t │ publish t+1│
    predictor  │                        │obs t│pred t+1│      │
    allocator  │                        │          │alloc│    │

Rollouts of t+1 start when version t+1 is confirmed by every generator and allocation t+1 is there. `observe`,
`predict` and `allocate` are chained by references, so they need nothing of the controller while the learner trains.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ray.exceptions import RayError

from actors.handles import Actors
from actors.rollouts import GeneratorPool, RolloutBatch, RolloutMaker
from actors.waiting import wait_for
from vipray.config import (
    CheckpointConfig,
    EvaluationConfig,
    GeneratorConfig,
    LearnerConfig,
    VerifierConfig,
    WeightsConfig,
)
from vipray.data.sampler import PromptSampler
from vipray.errors import WaitTimeoutError, WeightSyncError
from vipray.records import RolloutId, Span
from vipray.step_metrics import Planning, allocation_rows, count_evidence, reward_metrics

_log = logging.getLogger(__name__)
_PLANNING_TIMEOUT_S = 300.0  # prediction and allocation take milliseconds; a GPU's first kernels take seconds
_WRITING_TIMEOUT_S = 300.0


class RunObserver(Protocol):
    """Who is told what happens: the log, the terminal."""

    def on_stage(self, text: str) -> None:
        """Something begins that takes a while."""

    def on_step(self, metrics: Mapping[str, float], allocation_rows: list[dict[str, Any]]) -> None:
        """A step is complete."""

    def on_evaluation(self, rows: list[dict[str, Any]]) -> None:
        """An evaluation is complete; one row a prompt (`EVALUATION_SCHEMA`)."""


@dataclass(frozen=True)
class ControllerOptions:
    """The parts of the configuration that the controller acts on."""

    steps: int
    generators: GeneratorConfig
    verifiers: VerifierConfig
    learner: LearnerConfig
    weights: WeightsConfig
    checkpoints: CheckpointConfig
    checkpoint_dir: Path
    evaluation: EvaluationConfig


@dataclass(frozen=True)
class _Plan:
    """References of a step's planning, under way."""

    observed: Any  # None for the first step
    prediction: Any
    allocation: Any


class Controller:
    """Drives a run to its end.

    Args:
        actors: handles of everything that works.
        sampler: decides which prompts a step trains on.
        task_of: task label by prompt id, of every prompt.
        options: settings.
        observer: is told of stages, steps and evaluations.
        discard: ends the actor of a lost generator at once.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._actors = actors
        self._sampler = sampler
        self._task_of = task_of
        self._options = options
        self._observer = observer
        self._clock = clock
        self._pool = GeneratorPool(actors.generators, discard)
        self._rollouts = RolloutMaker(
            self._pool,
            actors.verifiers,
            rollout_timeout_s=options.generators.rollout_timeout_s,
            verdict_timeout_s=options.verifiers.timeout_s,
        )
        self._writing: Any = None

    async def run(self) -> None:
        """Publish the initial weights, evaluate, train for all steps, evaluate."""
        self._observer.on_stage("publishing the initial weights")
        await self._publish(0)
        await self._evaluate(0)
        started = self._clock()
        plan, cover = self._plan(0, observed=None), None
        for step in range(self._options.steps):
            planning = await self._planned(plan, cover)
            batch, generation_s = await self._timed(self._rollouts.make(planning.allocation.rollout_ids()))
            await self._write("rollouts", step, batch)
            prompt_ids = planning.allocation.prompt_ids
            successes, trials = count_evidence(prompt_ids, batch.verdicts)
            dispatched = self._clock()
            trained = [rank.train.remote(planning.allocation, *batch.references) for rank in self._actors.learners]
            observed = self._actors.predictor.observe.remote(prompt_ids, successes, trials)
            if step + 1 < self._options.steps:
                plan = self._plan(step + 1, observed)
            what = f"the learner's step {step}"
            (training, span), *_ = await wait_for(_all(trained), self._options.learner.step_timeout_s, what)
            training_s = self._clock() - dispatched
            _, publishing_s = await self._timed(self._publish(step + 1))
            ended = self._clock()
            cover = Span(dispatched, ended)
            await self._save(step + 1)
            metrics = {
                "step": step,
                "step/time_s": ended - started,
                "time/generation_s": generation_s,
                "time/training_s": training_s,
                "time/publishing_s": publishing_s,
                "learner/busy_s": span.duration_s,
                "policy/version": min(verdict.policy_version for verdict in batch.verdicts),
                **planning.metrics(),
                **reward_metrics(batch.verdicts, self._task_of),
                **batch.metrics,
                **training,
                "generators/count": len(self._pool.handles),
            }
            self._observer.on_step(metrics, allocation_rows(planning.allocation, successes, trials, self._task_of))
            started = ended
        await wait_for(observed, _PLANNING_TIMEOUT_S, "the predictor's last observation")
        await self._saved()
        await self._evaluate(self._options.steps)
        await self._written()

    def _plan(self, step: int, observed: Any) -> _Plan:
        """Start planning a step. The predictor works in order, so it has observed before it predicts."""
        prediction = self._actors.predictor.predict.remote(self._sampler.next_batch())
        return _Plan(observed, prediction, self._actors.allocator.allocate.remote(step, prediction))

    async def _planned(self, plan: _Plan, cover: Span | None) -> Planning:
        """Wait for a plan and account for what the wait cost."""
        start = self._clock()
        allocation = await wait_for(plan.allocation, _PLANNING_TIMEOUT_S, "the allocation of the step")
        wait_s = self._clock() - start
        prediction = await wait_for(plan.prediction, _PLANNING_TIMEOUT_S, "the prediction of the step")
        spans = [prediction.span]
        if plan.observed is not None:
            spans.append(await wait_for(plan.observed, _PLANNING_TIMEOUT_S, "the predictor's observation"))
        return Planning(allocation, tuple(spans), cover, wait_s, prediction.metrics)

    async def _publish(self, version: int) -> None:
        """Hand a policy version to every generator; each of them confirms it before it serves again.

        Each rank publishes the rows that it holds. The chunks are return values of the learners' method, so that the
        driver owns them and they outlive a rank. A learner that fails is found out before a generator is asked for
        anything.
        """
        num_returns = 1 + self._actors.num_chunks
        ranks = [rank.publish.options(num_returns=num_returns).remote(version) for rank in self._actors.learners]
        manifests = [references[-1] for references in ranks]  # the last that a rank yields, and small
        await wait_for(_all(manifests), self._options.weights.timeout_s, f"the learner to publish version {version}")
        chunks = [chunk for group in zip(*(references[:-1] for references in ranks), strict=True) for chunk in group]
        generators = dict(self._pool.handles)
        results = await asyncio.gather(
            *(self._load(name, generator, version, manifests[0], chunks) for name, generator in generators.items()),
            return_exceptions=True,
        )
        for generator_id, result in zip(generators, results, strict=True):
            if isinstance(result, RayError | WaitTimeoutError):
                self._pool.lose(generator_id, result)
            elif isinstance(result, BaseException):
                raise result
        self._pool.require(f"none took version {version}")

    async def _save(self, step: int) -> None:
        """Have a checkpoint saved if one is due after `step` steps; it is written behind the next step."""
        checkpoints = self._options.checkpoints
        if not checkpoints.every_steps or (step % checkpoints.every_steps and step != self._options.steps):
            return
        root, keep = str(self._options.checkpoint_dir.absolute()), checkpoints.keep_last
        saves = [rank.save.remote(root, step, keep) for rank in self._actors.learners]
        what = f"the learner to copy its state after step {step}"
        await wait_for(_all(saves), self._options.learner.step_timeout_s, what)

    async def _saved(self) -> None:
        """Wait for the last checkpoint to be complete."""
        saves = [rank.finish_saving.remote() for rank in self._actors.learners]
        await wait_for(_all(saves), self._options.learner.step_timeout_s, "the last checkpoint to be complete")

    async def _load(self, generator_id: str, generator: Any, version: int, manifest: Any, chunks: list[Any]) -> None:
        what = f"generator {generator_id} to take version {version}"
        confirmed = await wait_for(
            generator.load_weights.remote(manifest, *chunks), self._options.weights.timeout_s, what
        )
        if confirmed != version:
            raise WeightSyncError(f"generator {generator_id} confirmed version {confirmed} instead of {version}")

    async def _evaluate(self, step: int) -> None:
        """Evaluate every prompt with equal n. The predictor does not see these outcomes."""
        n = self._options.evaluation.rollouts_per_prompt
        if not n:
            return
        prompt_ids = list(self._task_of)
        self._observer.on_stage(f"evaluating {len(prompt_ids)} prompts with {n} rollouts each after {step} steps")
        batch = await self._rollouts.make([RolloutId(step, prompt_id, k) for prompt_id in prompt_ids for k in range(n)])
        await self._write("evaluation", step, batch)
        successes, trials = count_evidence(prompt_ids, batch.verdicts)
        self._observer.on_evaluation(
            [
                {"step": step, "prompt_id": p, "task": self._task_of[p], "successes": s, "trials": t}
                for p, s, t in zip(prompt_ids, successes.tolist(), trials.tolist(), strict=True)
            ]
        )

    async def _write(self, kind: str, step: int, batch: RolloutBatch) -> None:
        """Have a batch written, once the one before it is on disk: an error of the writer is not passed over."""
        await self._written()
        self._writing = self._actors.writer.write.remote(kind, step, *batch.references)

    async def _written(self) -> None:
        """Wait for the last batch to be on disk."""
        if self._writing is not None:
            await wait_for(self._writing, _WRITING_TIMEOUT_S, "the rollouts to be written")

    async def _timed(self, work: Any) -> tuple[Any, float]:
        start = self._clock()
        result = await work
        return result, self._clock() - start


async def _all(references: list[Any]) -> list[Any]:
    return await asyncio.gather(*references)
