"""Where the time went: spans of all actors, cut at the ends of training.

The stretch of step t reaches from the end of the training before it to the end of its own. Whatever any actor did in
that time is counted there, whichever step it was for: where generation overlaps with training, the stretch of step t
holds rollouts of t + 1. The first stretch begins with the first span that is for its step.

Planning is hidden as far as somebody generated or trained meanwhile, else it is exposed.

Legend: S trained steps.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vipray.arrays import FloatArray, IntArray
from vipray.errors import ConfigError
from vipray.records import TimelineSpan
from vipray.report.intervals import Intervals

TIMELINE_FILE = "timeline.jsonl"
_NAMES = {field.name for field in dataclasses.fields(TimelineSpan)}
_PREDICTOR, _ALLOCATOR = ("observe", "predict"), ("allocate",)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each stretch, each a column of shape [S]; shares are in [0, 1], NaN where nobody was there.

    `generation_s` and so on are times in which at least one actor did that.
    """

    step: IntArray
    start_s: FloatArray
    end_s: FloatArray
    generation_s: FloatArray
    verification_s: FloatArray
    training_s: FloatArray
    publishing_s: FloatArray
    predictor_hidden_s: FloatArray
    predictor_exposed_s: FloatArray
    allocator_hidden_s: FloatArray
    allocator_exposed_s: FloatArray
    generator_idle: FloatArray
    learner_idle: FloatArray

    @property
    def duration_s(self) -> FloatArray:
        """[S] lengths of the stretches."""
        return self.end_s - self.start_s


def read_timeline(path: Path) -> tuple[TimelineSpan, ...]:
    """Spans in order of their start; none where the file is missing. A torn line is passed over.

    Raises:
        ConfigError: the file is no timeline.
    """
    if not path.is_file():
        return ()
    rows: list[Any] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError:  # torn JSON or torn UTF-8: the run was interrupted while it wrote the line
            continue
    if any(not isinstance(row, dict) or set(row) != _NAMES for row in rows):
        raise ConfigError(f"{path} holds a line that is no span: move it away to report the run without it")
    return tuple(sorted((TimelineSpan(**row) for row in rows), key=lambda span: (span.start_s, span.end_s)))


def step_times(spans: Sequence[TimelineSpan]) -> StepTimes:
    """Account for the time of each step that was trained."""
    step, start, end = _stretches(spans)

    def seconds(*names: str) -> FloatArray:
        return time_of(spans, *names).within(start, end)

    cover = time_of(spans, "generate", "train")
    hidden = {names: (time_of(spans, *names) & cover).within(start, end) for names in (_PREDICTOR, _ALLOCATOR)}
    return StepTimes(
        step=step,
        start_s=start,
        end_s=end,
        generation_s=seconds("generate"),
        verification_s=seconds("verify"),
        training_s=seconds("train"),
        publishing_s=seconds("publish"),
        predictor_hidden_s=hidden[_PREDICTOR],
        predictor_exposed_s=np.maximum(seconds(*_PREDICTOR) - hidden[_PREDICTOR], 0.0),  # rounding
        allocator_hidden_s=hidden[_ALLOCATOR],
        allocator_exposed_s=np.maximum(seconds(*_ALLOCATOR) - hidden[_ALLOCATOR], 0.0),
        generator_idle=_idle_share(spans, "generator", start, end, lambda span: span.name == "generate"),
        learner_idle=_idle_share(spans, "learner", start, end, lambda span: True),
    )


def time_of(spans: Sequence[TimelineSpan], *names: str) -> Intervals:
    """When anybody did one of these."""
    return Intervals((span.start_s, span.end_s) for span in spans if span.name in names)


def _stretches(spans: Sequence[TimelineSpan]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Step [S], start [S] and end [S] of each stretch. A step that was trained twice counts as last trained."""
    ends: dict[int, float] = {}
    for span in spans:
        if span.name == "train" and span.step is not None:
            ends[span.step] = max(span.end_s, ends.get(span.step, span.end_s))
    steps = sorted(ends)
    if not steps:
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
    first = min(span.start_s for span in spans if span.step == steps[0])
    end = np.array([ends[step] for step in steps])
    return np.array(steps), np.concatenate([[first], end[:-1]]), end


def _idle_share(
    spans: Sequence[TimelineSpan],
    role: str,
    start: FloatArray,
    end: FloatArray,
    is_busy: Callable[[TimelineSpan], bool],
) -> FloatArray:
    """Share [S] of the presence of all actors of a role in which they did nothing.

    An actor is present from its first span to its `lost` one, else to the end. Time in which a generator takes weights
    is idle: what it is making stands still.
    """
    of_actor: dict[str, list[TimelineSpan]] = {}
    for span in spans:
        if span.role == role:
            of_actor.setdefault(span.actor, []).append(span)
    present, busy = np.zeros_like(start), np.zeros_like(start)
    for own in of_actor.values():
        last = min((span.end_s for span in own if span.name == "lost"), default=np.inf)
        present += Intervals([(own[0].start_s, last)]).within(start, end)
        work = Intervals((span.start_s, min(span.end_s, last)) for span in own if is_busy(span))
        busy += (work.within(start, end)) - (work & time_of(own, "load_weights")).within(start, end)
    return 1.0 - np.divide(busy, present, out=np.full_like(start, np.nan), where=present > 0)
