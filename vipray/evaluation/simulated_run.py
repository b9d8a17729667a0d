"""What is simulated, and what comes of it. Times are in units of one token of one rollout."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vipray.dispatch.staleness import StalenessPolicy
from vipray.records import TimelineSpan


@dataclass(frozen=True)
class PipelineSettings:
    """Simulated actors; times in units of one token.

    Attributes:
        steps: batches to train.
        generators: number of them.
        slots: rollouts that a generator makes at once.
        staleness: bound, and how it is kept.
        max_tokens_in_flight: expected tokens in flight at one generator at most.
        training_time: of a batch.
        publishing_time: from a trained batch until generators can take its weights; the learner is busy with it.
        loading_time: in which a generator takes weights.
        planning_time: of a step.
        mean_lifetime: of a generator, exponentially distributed; None: none ever fails.
        replacement_time: until a failed generator is replaced.
        seed: of failures.
    """

    steps: int
    generators: int
    slots: int = 8
    staleness: StalenessPolicy = field(default_factory=StalenessPolicy)
    max_tokens_in_flight: float = math.inf
    training_time: float = 0.0
    publishing_time: float = 0.0
    loading_time: float = 0.0
    planning_time: float = 0.0
    mean_lifetime: float | None = None
    replacement_time: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class SimulatedStep:
    """One trained step.

    Attributes:
        step: its number.
        started: when its first rollout started.
        complete: when its last rollout ended.
        trained: when its training ended.
        lower_bound: shortest possible time from `started` to `complete`, if it had all generators to itself.
        staleness: age of its tokens in versions, mean by tokens.
        max_staleness: age of the oldest.
    """

    step: int
    started: float
    complete: float
    trained: float
    lower_bound: float
    staleness: float
    max_staleness: int

    @property
    def makespan(self) -> float:
        """From the first start to the last end of its rollouts."""
        return self.complete - self.started


@dataclass(frozen=True)
class SimulatedRun:
    """A run until its last batch was trained.

    Attributes:
        steps: one record each.
        duration: of the run.
        generator_utilisation: share of slots x time, of generators that were alive, in which a token was made.
        learner_utilisation: share of the time in which the learner trained or published.
        exposed_planning: time in which a plan was made while nothing was trained or generated.
        planning: time in which plans were made.
        wasted_share: of the tokens made, those that were lost or too old.
        counts: rollouts issued again, too old, and so on, summed over steps.
        spans: of all actors, for a timeline.
    """

    steps: tuple[SimulatedStep, ...]
    duration: float
    generator_utilisation: float
    learner_utilisation: float
    exposed_planning: float
    planning: float
    wasted_share: float
    counts: dict[str, float]
    spans: tuple[TimelineSpan, ...] = field(repr=False)
