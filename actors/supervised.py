"""The actors of a run with what watches over them: who replaces whom, and by which rule."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.generator_pool import GeneratorPool, Replacements
from actors.handles import Actors, Ranks
from actors.health import Watched
from actors.learner_group import LearnerGroup, LearnerTimeouts
from actors.planner import Planner
from actors.seat import Seat, Supervision
from actors.step_writer import StepWriter
from actors.verifiers import Verifiers
from vipray.config import (
    GeneratorConfig,
    LearnerConfig,
    RestartConfig,
    SupervisionConfig,
    VerifierConfig,
    WeightsConfig,
)
from vipray.dispatch.restarts import RestartPolicy
from vipray.errors import summary_line
from vipray.records import Recovery
from vipray.run_state import RunState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SupervisedOptions:
    """What supervision needs of the configuration, and of the checkpoint that a run goes on from.

    Attributes:
        first_step: training steps taken before.
        base: checkpoint that the learner has loaded; None: the model itself.
        state: of the driver at that checkpoint; None: the run begins.
    """

    generators: GeneratorConfig
    verifiers: VerifierConfig
    learner: LearnerConfig
    weights: WeightsConfig
    supervision: SupervisionConfig
    checkpoint_dir: Path
    actor_start_timeout_s: float = 300.0
    first_step: int = 0
    base: Path | None = None
    state: RunState | None = None


class SupervisedActors:
    """Everybody who works, behind interfaces that survive the loss of whoever does it.

    Args:
        actors: handles, all ready.
        options: settings.
        discard: ends an actor at once.
        say: is told what happens, in a line.
        report: is told of every recovery.
        clock: wall-clock seconds.
    """

    def __init__(
        self,
        actors: Actors,
        options: SupervisedOptions,
        discard: Callable[[Any], None],
        say: Callable[[str], None],
        report: Callable[[Recovery], None],
        clock: Callable[[], float],
    ) -> None:
        rules = options.supervision
        self._discard = discard

        def supervision(kind: str, section: str, rule: RestartConfig) -> Supervision:
            return Supervision(
                kind=kind,
                setting=f"supervision.{section}",
                policy=RestartPolicy.of(rule),
                start_timeout_s=options.actor_start_timeout_s,
                discard=discard,
                report=report,
                clock=clock,
            )

        self._predictor = Seat(
            "predictor", actors.predictor, actors.start.predictor, supervision("predictor", "planners", rules.planners)
        )
        self._allocator = Seat(
            "allocator", actors.allocator, actors.start.allocator, supervision("allocator", "planners", rules.planners)
        )
        self.writer = Seat(
            "rollout writer", actors.writer, actors.start.writer, supervision("writer", "planners", rules.planners)
        )
        self.steps = StepWriter(self.writer, say)
        self.planner = Planner(
            self._predictor, self._allocator, None if options.state is None else options.state.predictor
        )
        rule_of_verifiers = supervision("verifier", "verifiers", rules.verifiers)
        self.verifiers = Verifiers(
            [
                Seat(f"verifier {number}", handle, actors.start.verifier, rule_of_verifiers)
                for number, handle in enumerate(actors.verifiers)
            ],
            options.verifiers.timeout_s,
            rules.max_kills,
        )
        replacements = Replacements(
            start=actors.start.generator,
            policy=RestartPolicy.of(rules.generators),
            start_timeout_s=options.generators.start_timeout_s,
            say=say,
            report=report,
        )
        load_timeout_s = options.weights.timeout_s
        if options.weights.in_flight == "wait":  # for the rollouts under way
            load_timeout_s += options.generators.rollout_timeout_s
        self.pool = GeneratorPool(actors.generators, discard, load_timeout_s, replacements, clock)
        self.learner = LearnerGroup(
            actors.learners,
            actors.start.learners,
            supervision("learner", "learners", rules.learners),
            LearnerTimeouts(options.learner.step_timeout_s, options.weights.timeout_s, options.actor_start_timeout_s),
            checkpoint_root=options.checkpoint_dir.absolute(),
            base=options.base,
            first_step=options.first_step,
            read_batch=self.steps.read,
        )

    def watched(self) -> Iterator[Watched]:
        """Who is to be asked whether it is there, as things are."""
        for generator_id, handle in self.pool.handles.items():
            yield Watched(generator_id, handle, functools.partial(self.pool.lose, generator_id))
        for seat in (self._predictor, self._allocator, self.writer, *self.verifiers.seats):
            if seat.is_held:
                yield Watched(seat.name, seat.handle, functools.partial(seat.lose, seat.handle))
        for number, rank in enumerate(self.learner.ranks.handles if self.learner.is_whole else ()):
            yield Watched(f"learner rank {number}", rank, functools.partial(self._lose_rank, rank, self.learner.ranks))

    def close(self) -> None:
        """Stop whatever is under way for those that are lost."""
        self.steps.close()
        self.learner.close()
        self.pool.close()
        self.planner.close()
        self.verifiers.close()
        for seat in (self._predictor, self._allocator, self.writer):
            seat.close()

    def _lose_rank(self, rank: Any, ranks: Ranks, error: BaseException) -> None:
        """End a rank: the call that it is at fails; without one, its group is built anew at once."""
        _log.warning("a learner rank is lost: %s", summary_line(error))
        self._discard(rank)
        self.learner.mend(ranks, error)
