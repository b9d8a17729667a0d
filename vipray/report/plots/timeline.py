"""Who was at work when, in the last few steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vipray.records import TimelineSpan
from vipray.report.intervals import Intervals
from vipray.report.plots.canvas import INK, MUTED, SERIES, add_legend, drawing, empty_svg, short_name, to_svg
from vipray.report.plots.time_split import ALLOCATOR, GENERATION, PREDICTOR, PUBLISHING, TRAINING
from vipray.report.run_data import RunData
from vipray.report.timeline import StepTimes, step_times
from vipray.report.trace import natural, sort_roles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

NAME = "timeline"
DESCRIPTION = "Spans of all actors in the last few steps"
NUM_STEPS = 3  # that are shown
MAX_ACTORS = 8  # of a role
COLORS = {
    "generate": GENERATION,
    "load_weights": SERIES[6],
    "verify": SERIES[5],
    "observe": SERIES[7],
    "predict": PREDICTOR,
    "allocate": ALLOCATOR,
    "train": TRAINING,
    "publish": PUBLISHING,
    "save": MUTED,
}
_ROW_IN = 0.24
_LEAST_WIDTH = 0.004  # of the picture: milliseconds are to be seen beside minutes
_PALER = 0.55  # every other step, so that they can be told apart


def timeline_svg(run: RunData) -> str:
    """Draw a row for each actor and a bar for whatever it did."""
    times = step_times(run.timeline)
    if not len(times.step):
        return empty_svg(NAME, DESCRIPTION, "no step in the timeline yet")
    first = max(0, len(times.step) - NUM_STEPS)
    start, end = float(times.start_s[first]), float(times.end_s[-1])
    shown = [span for span in run.timeline if span.end_s > start and span.start_s < end and span.name in COLORS]
    rows = _rows(shown)
    with drawing(1.5 + _ROW_IN * len(rows)) as figure:
        axes = figure.subplots()
        for number, (role, actor) in enumerate(rows):
            _draw_actor(axes, number, [s for s in shown if (s.role, s.actor) == (role, actor)], start, end)
        _label(axes, rows, shown)
        _mark_steps(axes, times, first)
        axes.set_xlim(0.0, end - start)
        patches = _patches(shown)
        add_legend(figure, list(patches.values()), [name.replace("_", " ") for name in patches])
        return to_svg(figure, NAME, DESCRIPTION)


def _rows(spans: Sequence[TimelineSpan]) -> list[tuple[str, str]]:
    """Role and actor of each row, some of each role where there are many."""
    actors: dict[str, set[str]] = {}
    for span in spans:
        actors.setdefault(span.role, set()).add(span.actor)
    return [
        (role, actor) for role in sort_roles(set(actors)) for actor in sorted(actors[role], key=natural)[:MAX_ACTORS]
    ]


def _draw_actor(axes: Axes, row: int, spans: Sequence[TimelineSpan], start: float, end: float) -> None:
    kinds: dict[tuple[str, int | None], list[tuple[float, float]]] = {}
    for span in spans:
        kinds.setdefault((span.name, span.step), []).append((max(span.start_s, start), min(span.end_s, end)))
    least = _LEAST_WIDTH * (end - start)
    for (name, step), pairs in sorted(kinds.items(), key=lambda item: list(COLORS).index(item[0][0])):
        bars = [(a - start, max(b - a, least)) for a, b in Intervals(pairs)]
        is_paler = name in ("generate", "verify", "train") and step is not None and step % 2 == 1
        axes.broken_barh(
            bars, (row - 0.4, 0.8), facecolors=COLORS[name], alpha=_PALER if is_paler else 1.0, linewidth=0
        )
        if name == "train" and bars:
            middle = bars[0][0] + bars[0][1] / 2
            axes.text(middle, row, str(step), ha="center", va="center", color=INK, clip_on=True)


def _label(axes: Axes, rows: Sequence[tuple[str, str]], spans: Sequence[TimelineSpan]) -> None:
    axes.set_yticks(range(len(rows)), [short_name(actor) for _, actor in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("seconds")
    axes.grid(axis="y", visible=False)
    hidden = len({(span.role, span.actor) for span in spans}) - len(rows)
    axes.set_title(f"{hidden} more actors are not shown" if hidden else "")


def _mark_steps(axes: Axes, times: StepTimes, first: int) -> None:
    """A line where the training of each step ends."""
    for end in times.end_s[first:-1]:
        axes.axvline(float(end - times.start_s[first]), color=MUTED, linewidth=0.8, linestyle=":")


def _patches(spans: Sequence[TimelineSpan]) -> dict[str, Patch]:
    from matplotlib.patches import Patch

    present = {span.name for span in spans}
    return {name: Patch(facecolor=color, linewidth=0) for name, color in COLORS.items() if name in present}
