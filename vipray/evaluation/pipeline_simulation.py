"""The pipeline in virtual time: the dispatcher, the lengths and the staleness policy of a run, with simulated actors.

A generator makes up to `slots` rollouts at once, each at one token per unit of time however many there are; so a unit
of time is the time of a token. While it takes new weights everything on it stands still, and what is in flight goes on
afterwards. The learner trains a batch in `training_time` and needs `publishing_time` until generators can take the new
version, each when it is offered, without a barrier. The plan of step s (`planning_time`: observe, predict, allocate)
begins when batch s - 1 - max_staleness is complete: later outcomes cannot be known to it if generation is not to stop.

    planned(s) ──► rollouts of s ──► batch complete ──► trained(s) ──► published(s + 1) ──► confirmed by each generator

Nothing here decides anything that a real run decides elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.lengths import LengthModel
from vipray.dispatch.staleness import StalenessAction
from vipray.evaluation.simulated_run import PipelineSettings, SimulatedRun, SimulatedStep
from vipray.evaluation.simulated_workload import StepWork, Workload, WorkloadSettings
from vipray.records import RolloutId, TimelineSpan

_BEFORE = 1_000_000  # steps from which lengths are learned in advance: no simulation comes so far


class Work(Protocol):
    """Where the rollouts of each step come from."""

    def step(self, step: int) -> StepWork:
        """The work of a step; asked for in order of steps."""


def simulate(settings: PipelineSettings, workload: Work, lengths: LengthModel) -> SimulatedRun:
    """Run the pipeline until `settings.steps` batches are trained. `lengths` learns on the way.

    Raises:
        RuntimeError: nothing can go on although batches are missing.
    """
    return _Simulation(settings, workload, lengths).run()


def learned_lengths(settings: WorkloadSettings, epochs: int) -> LengthModel:
    """Lengths as they are known after some epochs over a workload, with other rollouts than it will have later."""
    workload = Workload(settings)
    lengths = LengthModel(workload.task_of, prior_tokens=settings.median_tokens)
    for step in range(epochs * (settings.num_prompts // settings.prompts_per_batch)):
        work = workload.step(_BEFORE + step)
        lengths.observe([r.prompt_id for r in work.rollout_ids], list(work.tokens.values()))
    return lengths


@dataclass
class _Rollout:
    """A rollout on a generator: when it ends, and the version of its first token."""

    start: float
    end: float
    version: int


@dataclass
class _Generator:
    """A generator: its version, the one that it is loading, and what it makes."""

    version: int
    loading_until: float = 0.0
    making: dict[RolloutId, _Rollout] = field(default_factory=dict)


@dataclass
class _StepState:
    """What is known of a step on its way."""

    work: StepWork
    started: float | None = None
    complete: float = math.inf
    ages: list[tuple[int, float]] = field(default_factory=list)  # versions, tokens

    def record(self, trained: float, settings: PipelineSettings) -> SimulatedStep:
        """What the step was, once it is trained."""
        tokens = math.fsum(tokens for _, tokens in self.ages)
        return SimulatedStep(
            step=self.work.step,
            started=math.nan if self.started is None else self.started,
            complete=self.complete,
            trained=trained,
            lower_bound=self.work.lower_bound(settings.slots, settings.generators),
            staleness=math.fsum(age * number for age, number in self.ages) / tokens,
            max_staleness=max(age for age, _ in self.ages),
        )


class _Clock:
    """Virtual time, and events in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), event))

    def next_event(self) -> tuple[float, Callable[[], None]]:
        if not self._events:
            raise RuntimeError("nothing can go on although batches are missing")
        time, _, event = heapq.heappop(self._events)
        return time, event


class _Shares:
    """Integrals over time of what is busy."""

    def __init__(self) -> None:
        self.alive_slots = 0
        self.busy_slots = 0
        self.learner_busy = 0
        self.training = 0
        self.planning = 0
        self.slot_time = self.busy_time = self.learner_time = self.planning_time = self.exposed_time = 0.0

    def pass_time(self, seconds: float) -> None:
        self.slot_time += self.alive_slots * seconds
        self.busy_time += self.busy_slots * seconds
        self.learner_time += bool(self.learner_busy) * seconds
        self.planning_time += bool(self.planning) * seconds
        self.exposed_time += bool(self.planning and not self.training and not self.busy_slots) * seconds


class _Simulation:
    """Actors as callbacks on a virtual clock."""

    def __init__(self, settings: PipelineSettings, workload: Work, lengths: LengthModel) -> None:
        self._settings = settings
        self._workload = workload
        self._lengths = lengths
        self._clock = _Clock()
        self._shares = _Shares()
        self._rng = np.random.default_rng(settings.seed)
        self._dispatcher = Dispatcher(
            settings.staleness, max_rollouts=settings.slots, max_tokens=settings.max_tokens_in_flight
        )
        self._generators: dict[str, _Generator] = {}
        self._names = itertools.count()
        self._steps: dict[int, _StepState] = {}
        self._planned = 0  # steps whose plan has begun
        self._training: int | None = None
        self._version = 0  # the newest that is published
        self._trained: list[SimulatedStep] = []
        self._made_tokens = self._wasted_tokens = 0.0
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._spans: list[TimelineSpan] = []
        self._generating: dict[tuple[str, int], list[float]] = {}

    def run(self) -> SimulatedRun:
        for _ in range(self._settings.generators):
            self._join()
        for _ in range(self._settings.staleness.max_staleness + 1):
            self._plan_next()
        while len(self._trained) < self._settings.steps:
            self._assign()
            time, event = self._clock.next_event()
            self._shares.pass_time(time - self._clock.now)
            self._clock.now = time
            event()
        return self._result()

    # Planning

    def _plan_next(self) -> None:
        step, self._planned = self._planned, self._planned + 1
        start = self._clock.now
        self._shares.planning += 1

        def planned() -> None:
            self._shares.planning -= 1
            self._span("predictor", "predictor", "predict", start, step)
            work = self._workload.step(step)
            self._steps[step] = _StepState(work)
            prompt_ids = list(dict.fromkeys(rollout_id.prompt_id for rollout_id in work.rollout_ids))
            expected = dict(zip(prompt_ids, self._lengths.expect(prompt_ids).tolist(), strict=True))
            self._dispatcher.add_step(step, work.rollout_ids, expected)

        self._clock.after(self._settings.planning_time, planned)

    # Generation

    def _join(self) -> None:
        name = f"generator-{next(self._names)}"
        self._generators[name] = _Generator(self._version)
        self._dispatcher.join(name, self._version)
        self._shares.alive_slots += self._settings.slots
        if self._settings.mean_lifetime is not None:
            lifetime = float(self._rng.exponential(self._settings.mean_lifetime))
            self._clock.after(lifetime, lambda: self._fail(name))

    def _fail(self, name: str) -> None:
        generator = self._generators.pop(name)
        self._shares.alive_slots -= self._settings.slots
        if generator.loading_until <= self._clock.now:
            self._shares.busy_slots -= len(generator.making)
        lost = math.fsum(max(self._clock.now - rollout.start, 0.0) for rollout in generator.making.values())
        self._wasted_tokens += lost
        self._made_tokens += lost
        self._dispatcher.leave(name, is_suspicious=False)
        self._span(name, "generator", "lost", self._clock.now)
        self._clock.after(self._settings.replacement_time, self._join)

    def _assign(self) -> None:
        now = self._clock.now
        for name, rollout_ids in self._dispatcher.assign().items():
            generator = self._generators[name]
            is_loading = generator.loading_until > now
            if not is_loading:
                self._shares.busy_slots += len(rollout_ids)
            for rollout_id in rollout_ids:
                state = self._steps[rollout_id.step]
                state.started = now if state.started is None else state.started
                start = max(now, generator.loading_until)
                version = self._version if is_loading else generator.version
                rollout = _Rollout(start, start + state.work.tokens[rollout_id], version)
                generator.making[rollout_id] = rollout
                self._generating.setdefault((name, rollout_id.step), [start, start])
                self._end_at(name, rollout_id, rollout)

    def _end_at(self, name: str, rollout_id: RolloutId, rollout: _Rollout) -> None:
        end = rollout.end
        self._clock.after(end - self._clock.now, lambda: self._end(name, rollout_id, rollout, end))

    def _end(self, name: str, rollout_id: RolloutId, rollout: _Rollout, end: float) -> None:
        generator = self._generators.get(name)
        if generator is None or generator.making.get(rollout_id) is not rollout or rollout.end != end:
            return  # its generator failed, or stood still meanwhile
        del generator.making[rollout_id]
        self._shares.busy_slots -= 1
        self._generating[name, rollout_id.step][1] = self._clock.now
        tokens = self._steps[rollout_id.step].work.tokens[rollout_id]
        self._made_tokens += tokens
        decision = self._dispatcher.complete(rollout_id, name, rollout.version)
        if decision.action is not StalenessAction.ADMIT:
            self._wasted_tokens += tokens
            return
        self._steps[rollout_id.step].ages.append((rollout_id.step - rollout.version, tokens))
        if self._dispatcher.is_complete(rollout_id.step):
            self._complete(rollout_id.step)

    def _complete(self, step: int) -> None:
        state = self._steps[step]
        state.complete = self._clock.now
        for name, value in self._dispatcher.metrics(step).items():
            self._counts[name] += value
        self._dispatcher.close_step(step)
        rollout_ids, tokens = state.work.rollout_ids, state.work.tokens
        self._lengths.observe([r.prompt_id for r in rollout_ids], [tokens[r] for r in rollout_ids])
        self._plan_next()
        self._train()

    # Training

    def _train(self) -> None:
        """Train the next batch if it is complete and the learner is free."""
        step = len(self._trained)
        is_complete = step in self._steps and self._steps[step].complete <= self._clock.now
        if self._shares.learner_busy or not is_complete:
            return
        start = self._clock.now
        self._shares.learner_busy = self._shares.training = 1

        def trained() -> None:
            self._shares.training = 0
            self._span("learner", "learner", "train", start, step)
            self._trained.append(self._steps.pop(step).record(self._clock.now, self._settings))
            self._publish(step + 1)

        self._clock.after(self._settings.training_time, trained)

    def _publish(self, version: int) -> None:
        start = self._clock.now

        def published() -> None:
            self._shares.learner_busy = 0
            self._version = version
            self._span("learner", "learner", "publish", start, version=version)
            for name in self._generators:
                self._load(name, version)
            self._train()

        self._clock.after(self._settings.publishing_time, published)

    def _load(self, name: str, version: int) -> None:
        """Let everything on a generator stand still while it takes a version."""
        generator, start, pause = self._generators[name], self._clock.now, self._settings.loading_time
        if generator.loading_until <= start:
            self._shares.busy_slots -= len(generator.making)
        generator.loading_until = max(generator.loading_until, start) + pause
        for rollout_id, rollout in generator.making.items():
            rollout.end += pause
            self._end_at(name, rollout_id, rollout)

        def loaded() -> None:
            if name not in self._generators:
                return
            generator.version = version
            self._dispatcher.confirm(name, version)
            if pause:
                self._span(name, "generator", "load_weights", start, version=version)
            if generator.loading_until <= self._clock.now:
                self._shares.busy_slots += len(generator.making)

        self._clock.after(generator.loading_until - start, loaded)

    # Results

    def _span(
        self, actor: str, role: str, name: str, start: float, step: int | None = None, version: int | None = None
    ) -> None:
        self._spans.append(TimelineSpan(actor, role, name, start, self._clock.now, step, version))

    def _result(self) -> SimulatedRun:
        duration, shares = self._clock.now, self._shares
        return SimulatedRun(
            steps=tuple(self._trained),
            duration=duration,
            generator_utilisation=shares.busy_time / shares.slot_time,
            learner_utilisation=shares.learner_time / duration,
            exposed_planning=shares.exposed_time,
            planning=shares.planning_time,
            wasted_share=self._wasted_tokens / self._made_tokens,
            counts=dict(self._counts),
            spans=tuple(sorted([*self._spans, *_generate_spans(self._generating)], key=lambda span: span.start_s)),
        )


def _generate_spans(generating: dict[tuple[str, int], list[float]]) -> list[TimelineSpan]:
    """One span for each generator and step, from its first start to its last end."""
    return [
        TimelineSpan(name, "generator", "generate", start, end, step)
        for (name, step), (start, end) in generating.items()
    ]
