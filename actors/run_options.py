"""What a run is told: settings, where it goes on from, and who is told what happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from actors.supervised import SupervisedOptions
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
from vipray.records import Recovery, TimelineSpan
from vipray.run_state import RunState


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

    def on_recovery(self, recovery: Recovery) -> None:
        """A loss was made good."""


@dataclass(frozen=True)
class ControllerOptions:
    """The parts of the configuration that the controller acts on, and where a run goes on from.

    Attributes:
        facts: of the run, for the manifests of its checkpoints.
        base: checkpoint to go on from, or to begin with; None: the model itself.
        state: of the driver at that checkpoint, where the run goes on.
        actor_start_timeout_s: longest wait for a replacement of an actor other than a generator.
        last_sign_s: when the run that this one goes on with gave its last sign; None: it is the first.
    """

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
    facts: Mapping[str, Any] = field(default_factory=dict)
    base: Path | None = None
    state: RunState | None = None
    actor_start_timeout_s: float = 300.0
    last_sign_s: float | None = None

    @property
    def first_step(self) -> int:
        """Training steps that were taken before this run."""
        return 0 if self.state is None else self.state.step

    def supervised(self) -> SupervisedOptions:
        """The part for those who watch over the actors."""
        return SupervisedOptions(
            generators=self.generators,
            verifiers=self.verifiers,
            learner=self.learner,
            weights=self.weights,
            supervision=self.supervision,
            checkpoint_dir=self.checkpoint_dir,
            actor_start_timeout_s=self.actor_start_timeout_s,
            first_step=self.first_step,
            base=self.base,
            state=self.state,
        )
