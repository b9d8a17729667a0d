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

Who dies meanwhile is replaced (actors/supervised.py); the loops see only that a call took longer. What no replacement
brings back, rows or weights that were on a node that died, is made again here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from actors.evaluation import evaluate, evaluation_rows
from actors.generator_pool import PoolListener
from actors.handles import Actors
from actors.health import HealthMonitor
from actors.learner_group import is_checkpoint_due
from actors.planner import Plan
from actors.rollouts import RolloutBatch, RolloutLimits, RolloutMaker
from actors.run_checkpoints import RunCheckpoints, restored_rollouts
from actors.run_options import ControllerOptions, RunObserver
from actors.supervised import SupervisedActors
from actors.timeline_recorder import TimelineRecorder
from vipray.data.sampler import PromptSampler
from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.lengths import LengthModel
from vipray.dispatch.staleness import StalenessPolicy
from vipray.errors import CheckpointError, ObjectGoneError
from vipray.records import Allocation, Recovery, Span, Verdict
from vipray.run_state import RunState
from vipray.step_metrics import Planning, allocation_rows, count_evidence, reward_metrics, staleness

_MAX_LOSSES = 8  # of a step's rows, or of a version's weights
_COVERS = 8  # stretches of work that are remembered: those of a few steps


@dataclass(frozen=True)
class _Collected:
    """A step's batch, ready to be trained on."""

    planning: Planning
    batch: RolloutBatch


class Controller(PoolListener):
    """Drives a run to its end.

    Args:
        actors: handles of everything that works.
        sampler: decides which prompts a step trains on; where a run goes on, it is where the checkpoint left it.
        task_of: task label by prompt id, of every prompt.
        options: settings.
        observer: is told of stages, steps, evaluations and recoveries.
        discard: ends an actor at once.
        cancel: gives up a call that nobody waits for any more.
        clock: wall-clock seconds, comparable with the spans of actors.
        spoil: may put another reference in the place of a scored rollout's, for trying out faults.
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
        spoil: Callable[[Any], Any] | None = None,
    ) -> None:
        self._spoil = spoil
        self._sampler = sampler
        self._task_of = task_of
        self._options = options
        self._observer = observer
        self._cancel = cancel
        self._clock = clock
        self._timeline = TimelineRecorder()
        self._actors = SupervisedActors(
            actors, options.supervised(), discard, observer.on_stage, observer.on_recovery, clock
        )
        self._pool, self._learner, self._planner = self._actors.pool, self._actors.learner, self._actors.planner
        self._pool.listeners += [self._timeline, self]
        self._writer = self._actors.steps
        self._checkpoints = RunCheckpoints(
            options.checkpoint_dir.absolute(),
            options.checkpoints.keep_last,
            options.facts,
            self._learner,
            self._actors.writer,
            observer.on_stage,
        )
        supervision = options.supervision
        self._health = HealthMonitor(self._actors.watched, supervision.health_interval_s, supervision.health_timeout_s)
        self._lengths = LengthModel(task_of, prior_tokens=options.max_completion_tokens / 2)
        self._restored: tuple[Allocation, ...] = ()  # plans of the checkpoint
        self._restored_rollouts: list[tuple[Any, Verdict]] = []
        if options.state is not None:
            with suppress(ValueError):  # of other prompts: lengths are learned anew
                self._lengths.load_state_dict(options.state.lengths)
            self._restored = options.state.plans
            self._restored_rollouts = restored_rollouts(options.state.rollouts, clock())
        self._plans: asyncio.Queue[Plan | Allocation] = asyncio.Queue(maxsize=1)
        self._opened: asyncio.Queue[Planning] = asyncio.Queue(maxsize=1)
        self._batches: asyncio.Queue[_Collected] = asyncio.Queue(maxsize=max(1, options.pipeline.max_staleness))
        self._observations: dict[int, asyncio.Future[Any]] = {}  # by step: the call by which it was observed
        self._begun: dict[int, Plan | Allocation] = {}  # plans of steps that are not trained on yet
        self._untrained: dict[int, RolloutBatch] = {}  # their batches, where these are complete
        self._covers: list[Span] = []  # recent training, publishing and generation, behind which planning can hide
        self._rollouts: RolloutMaker | None = None  # while training
        self._stopping = asyncio.Event()
        self._weights_lost = asyncio.Event()

    async def run(self) -> bool:
        """Publish the weights, evaluate, train for all steps, evaluate; return False if stopped before.

        Raises:
            CheckpointError: all is done, but the last checkpoint could not be written.
        """
        work = asyncio.create_task(self._run())
        watching: list[asyncio.Task[None]] = [
            asyncio.create_task(self._health.run()),
            asyncio.create_task(self._republish_loop()),
        ]
        try:
            await asyncio.wait([work, *watching], return_when=asyncio.FIRST_COMPLETED)
            for watch in watching:
                if watch.done():  # it never ends by itself: an error that nobody else would hear of
                    raise _first(watch.exception() or RuntimeError("a watching task has ended"))
            return work.result()
        finally:
            for task in (work, *watching):
                task.cancel()
            await asyncio.gather(work, *watching, return_exceptions=True)
            self._actors.close()
            self._observer.on_spans(self._timeline.flush())

    async def _run(self) -> bool:
        options, first = self._options, self._options.first_step
        self._observer.on_stage("publishing the initial weights" if not first else f"publishing the weights of {first}")
        if options.base is not None:
            taken = await self._learner.load(options.base)
            self._observer.on_stage(f"the learner goes on from {options.base}, saved after {taken} steps")
        await self._planner.start()
        self._pool.publish(await self._learner.publish())
        await self._pool.settled()
        if options.last_sign_s is not None:
            now_s = self._clock()
            cause = f"the run goes on after {first} steps"
            self._observer.on_recovery(Recovery("driver", "driver", cause, options.last_sign_s, now_s, now_s))
        if not first:
            await self._evaluate(0)
        if not await self._train():
            return False
        await self._pool.settled()
        await self._evaluate(options.steps)
        await self._writer.written()
        if options.checkpoints.every_steps and not await self._checkpoints.finish():
            raise CheckpointError("the last checkpoint could not be written; the run itself is complete")
        return True

    def stop(self) -> bool:
        """Ask the run to end with a checkpoint; return False where it writes none and can be ended at once."""
        self._stopping.set()
        return self._options.checkpoints.every_steps > 0 and self._rollouts is not None

    def on_weights_lost(self, version: int) -> None:
        """A generator could not load a version: publish again."""
        self._weights_lost.set()

    async def _train(self) -> bool:
        options = self._options
        policy = StalenessPolicy(options.pipeline.max_staleness, options.pipeline.on_stale)
        rollouts = self._rollouts = self._rollout_maker(policy, self._timeline, options.pipeline.straggler_deadline_s)
        ahead = [self._plan_loop(), self._open_loop(rollouts), self._collect_loop(rollouts)]
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(loop) for loop in ahead]
                learning = group.create_task(self._learn_loop(rollouts))
                learning.add_done_callback(lambda _: [other.cancel() for other in others])
            return learning.result()
        except ExceptionGroup as errors:
            first = _first(errors)
            raise first from first.__cause__
        finally:
            self._rollouts = None
            rollouts.close()

    async def _plan_loop(self) -> None:
        """Start planning each step as soon as it may know what it needs. The predictor works in order."""
        first = self._options.first_step
        lag = 1 if self._options.pipeline.max_staleness == 0 else 2
        for restored in self._restored:
            self._begun[restored.step] = restored
            await self._plans.put(restored)
        for step in range(first + len(self._restored), self._options.steps):
            if step - lag >= first:  # what came before, the predictor knows from the checkpoint
                await self._observation(step - lag)
            plan = self._begun[step] = self._planner.begin(step, self._sampler.next_batch())
            await self._plans.put(plan)

    async def _open_loop(self, rollouts: RolloutMaker) -> None:
        """Open each step once its allocation is there."""
        for _ in range(self._options.first_step, self._options.steps):
            planning = await self._planned(await self._plans.get())
            allocation = planning.allocation
            done = [pair for pair in self._restored_rollouts if pair[1].rollout_id.step == allocation.step]
            rollouts.open(allocation.step, allocation.rollout_ids(), self._expected(allocation.prompt_ids), done)
            await self._opened.put(planning)

    async def _collect_loop(self, rollouts: RolloutMaker) -> None:
        """Take each step's batch when it is complete."""
        for step in range(self._options.first_step, self._options.steps):
            planning = await self._opened.get()
            batch = self._untrained[step] = await rollouts.finished(step)
            lengths = [verdict.num_tokens for verdict in batch.verdicts]
            self._lengths.observe([verdict.rollout_id.prompt_id for verdict in batch.verdicts], lengths)
            self._covers.append(batch.span)
            await self._batches.put(_Collected(planning, batch))

    async def _learn_loop(self, rollouts: RolloutMaker) -> bool:
        """Train on each batch in order, and publish; return False if stopped before the last."""
        checkpoints, steps = self._options.checkpoints, self._options.steps
        started = published_at = self._clock()
        for step in range(self._options.first_step, steps):
            waited = self._clock()
            collected = await self._unless_stopped(self._batches.get())
            if collected is None:
                if self._checkpoints.step != step:  # else it was due, and is being written
                    await self._save(step, rollouts)
                await self._checkpoints.finish()
                await self._writer.written()
                return False
            planning, batch = collected.planning, collected.batch
            dispatched = self._clock()
            learner_metrics, busy_s, allocation, batch = await self._trained(planning.allocation, batch, rollouts)
            trained_at = self._clock()
            del self._begun[step], self._untrained[step]
            await self._writer.written()
            if self._writer.lost_steps and checkpoints.every_steps:  # a new learner group could not repeat the step
                await self._save(step + 1, rollouts)
                await self._checkpoints.finish()
            self._pool.publish(await self._learner.publish())
            ended = self._clock()
            self._covers = [*self._covers[-_COVERS:], Span(dispatched, ended)]
            self._timeline.add("learner", "train", Span(dispatched, trained_at), step=step)
            self._timeline.add("learner", "publish", Span(trained_at, ended), version=step + 1)
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
            evidence = count_evidence(allocation.prompt_ids, batch.verdicts)
            self._observer.on_step(metrics, allocation_rows(allocation, *evidence, self._task_of))
            if is_checkpoint_due(checkpoints, step + 1, steps) and self._checkpoints.step != step + 1:
                saving_from = self._clock()
                await self._save(step + 1, rollouts)
                self._timeline.add("learner", "save", Span(saving_from, self._clock()), step=step)
            self._observer.on_spans(self._timeline.flush())
            started = published_at = ended
        if self._options.first_step < steps:
            await self._planner.observed(await self._observation(steps - 1))
        return True

    async def _trained(
        self, allocation: Allocation, batch: RolloutBatch, rollouts: RolloutMaker
    ) -> tuple[dict[str, float], float, Allocation, RolloutBatch]:
        """Train on a batch, with rows made again where they are lost; tell the predictor of it and have it written."""
        step, is_told, remade = allocation.step, False, 0

        def observe() -> None:
            # Not before training is under way: only the next plan needs it, and that waits for nothing else. Once: the
            # predictor has seen these outcomes, also those of rows that are lost after that and made again.
            nonlocal is_told
            if not is_told:
                is_told = True
                evidence = count_evidence(allocation.prompt_ids, batch.verdicts)
                self._observation(step).set_result(self._planner.observe(allocation.prompt_ids, *evidence))

        while True:
            allocation = replace(allocation, dropped=batch.dropped)
            await self._writer.write("rollouts", step, batch)
            try:
                metrics, busy_s = await self._learner.train(allocation, batch.references, observe)
            except ObjectGoneError as error:
                remade += 1
                if remade > _MAX_LOSSES:
                    raise ObjectGoneError(f"rows of step {step} were lost {remade} times: {error}") from error
                lost_at_s = self._clock()
                batch = await rollouts.remake(batch, step, self._expected(allocation.prompt_ids))
                now_s, number = self._clock(), int(batch.metrics["rollouts/remade"])
                self._observer.on_recovery(
                    Recovery("object", f"batch {step}", str(error), lost_at_s, now_s, now_s, number)
                )
                continue
            return metrics, busy_s, allocation, batch

    async def _unless_stopped(self, coming: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a value, or return None once the run is to stop. A value that is there goes first, as it is."""
        if self._stopping.is_set():
            coming.close()
            return None
        value, stop = asyncio.ensure_future(coming), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([value, stop], return_when=asyncio.FIRST_COMPLETED)
            return value.result() if value.done() else None
        finally:
            value.cancel()
            stop.cancel()

    async def _save(self, step: int, rollouts: RolloutMaker) -> None:
        """Begin a checkpoint of everything after `step` training steps."""
        # All of one moment: what is begun later, the sampler of this moment draws again.
        begun = list(self._begun.values())
        sampler, lengths = self._sampler.state_dict(), self._lengths.state_dict()
        batches = [zip(batch.references, batch.verdicts, strict=True) for batch in self._untrained.values()]
        done = [*(pair for pairs in batches for pair in pairs), *rollouts.done()]
        plans = [plan if isinstance(plan, Allocation) else (await self._planner.finished(plan))[0] for plan in begun]
        predictor = dict(await self._planner.state())
        state = RunState(step, sampler, lengths, predictor, tuple(plans))
        await self._checkpoints.save(state, [row for row, _ in done])
        self._writer.lost_steps.clear()  # all that a new learner group has to repeat is after this

    async def _republish_loop(self) -> None:
        """Publish again what was lost before every generator had it."""
        losses: Counter[int] = Counter()
        while True:
            await self._weights_lost.wait()
            self._weights_lost.clear()
            losses[self._learner.version] += 1
            if losses[self._learner.version] > _MAX_LOSSES:
                raise ObjectGoneError(
                    f"the weights of version {self._learner.version} were lost {_MAX_LOSSES} times before every "
                    "generator had them: is there room for them in the object stores?"
                )
            lost_at_s = self._clock()
            publication = await self._learner.publish()
            self._pool.publish(publication)
            now_s = self._clock()
            cause = "chunks of published weights are lost"
            self._observer.on_recovery(
                Recovery("object", f"version {publication.version}", cause, lost_at_s, now_s, now_s)
            )

    def _observation(self, step: int) -> asyncio.Future[Any]:
        if step not in self._observations:
            self._observations[step] = asyncio.get_running_loop().create_future()
        return self._observations[step]

    async def _planned(self, plan: Plan | Allocation) -> Planning:
        """Wait for a plan and account for what the wait cost."""
        if isinstance(plan, Allocation):  # of the checkpoint
            return Planning(plan, (), 0.0)
        start = self._clock()
        allocation, prediction = await self._planner.finished(plan)
        wait_s = self._clock() - start
        spans = [prediction.span]
        lag = 1 if self._options.pipeline.max_staleness == 0 else 2
        observation = self._observations.pop(plan.step - lag, None)
        if observation is not None:
            spans.append(await self._planner.observed(observation.result()))
            self._timeline.add("predictor", "observe", spans[-1], step=plan.step)
        self._timeline.add("predictor", "predict", prediction.span, step=plan.step)
        self._timeline.add("allocator", "allocate", allocation.span, step=plan.step)
        return Planning(allocation, tuple(spans), wait_s, prediction.metrics)

    async def _evaluate(self, step: int) -> None:
        """Evaluate every prompt with equal n, on the version of `step`."""
        n = self._options.evaluation.rollouts_per_prompt
        if not n:
            return
        prompt_ids = list(self._task_of)
        self._observer.on_stage(f"evaluating {len(prompt_ids)} prompts with {n} rollouts each after {step} steps")
        rollouts = self._rollout_maker(StalenessPolicy(0))  # the timeline is of training
        batch = await evaluate(rollouts, step, n, self._expected(prompt_ids))
        await self._writer.write("evaluation", step, batch)
        self._observer.on_evaluation(evaluation_rows(step, batch, self._task_of))

    def _expected(self, prompt_ids: Sequence[str]) -> dict[str, float]:
        """Expected tokens of a rollout, by prompt."""
        return dict(zip(prompt_ids, self._lengths.expect(prompt_ids).tolist(), strict=True))

    def _rollout_maker(
        self, policy: StalenessPolicy, recorder: TimelineRecorder | None = None, straggler_s: float | None = None
    ) -> RolloutMaker:
        max_rollouts, max_completion = self._options.generators.max_num_seqs, self._options.max_completion_tokens
        return RolloutMaker(
            self._pool,
            self._actors.verifiers,
            Dispatcher(
                policy,
                max_rollouts=max_rollouts,
                max_tokens=self._options.pipeline.max_tokens_in_flight or max_rollouts * max_completion,
                max_kills=self._options.supervision.max_kills,
            ),
            RolloutLimits(self._options.generators.rollout_timeout_s, max_completion, straggler_s),
            self._cancel,
            recorder,
            self._clock,
            None if recorder is None else self._spoil,
        )


def _first(error: BaseException) -> BaseException:
    """The first error of a group of groups: the others are its company or its consequence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
