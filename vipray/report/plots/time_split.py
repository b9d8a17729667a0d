"""Where a step's time went, and what the predictor and the allocator cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vipray.arrays import FloatArray
from vipray.report.plots.canvas import MUTED, SERIES, add_legend, drawing, empty_svg, label_steps, to_svg
from vipray.report.run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

NAME = "time"
DESCRIPTION = "Time of each step by part, and time of predictor and allocator that ran behind training"
MAX_BARS = 80
GENERATION, TRAINING, PUBLISHING, PREDICTOR, ALLOCATOR = SERIES[0], SERIES[1], SERIES[2], SERIES[3], SERIES[4]
LOADING = SERIES[6]


def time_split_svg(run: RunData) -> str:
    """Draw the parts of each step's time; below, exposed and hidden time of predictor and allocator."""
    if not run.steps.num_steps:
        return empty_svg(NAME, DESCRIPTION, "no finished step yet")
    with drawing(5.6) as figure:
        parts, decisions = figure.subplots(2, 1, height_ratios=(1.6, 1))
        legend = _draw_parts(parts, run) | _draw_decisions(decisions, run)
        add_legend(figure, list(legend.values()), list(legend))
        return to_svg(figure, NAME, DESCRIPTION)


def _draw_parts(axes: Axes, run: RunData) -> dict[str, BarContainer]:
    steps = run.steps
    parts = {
        "generation": (steps.generation_s, GENERATION),
        "training": (steps.training_s, TRAINING),
        "publishing": (steps.publishing_s, PUBLISHING),
        "loading": (steps.loading_s, LOADING),
        "other": (steps.other_s, MUTED),
        "predictor, exposed": (steps.predictor_exposed_s, PREDICTOR),
        "allocator, exposed": (steps.allocator_exposed_s, ALLOCATOR),
    }
    legend: dict[str, BarContainer] = {}
    per_bar = _steps_per_bar(run)
    x = _bars(steps.step.astype(np.float64), per_bar)
    bottom = np.zeros_like(x)
    for label, (seconds, color) in parts.items():
        height = _bars(seconds, per_bar)
        legend[label] = axes.bar(x, height, bottom=bottom, width=0.8 * per_bar, color=color, linewidth=0)
        bottom = bottom + height
    axes.set_title("The step" + _bar_note(per_bar))
    axes.set_ylabel("seconds")
    axes.grid(axis="x", visible=False)
    label_steps(axes, int(steps.step[0]), int(steps.step[-1]))
    return legend


def _draw_decisions(axes: Axes, run: RunData) -> dict[str, BarContainer]:
    """Solid bars are part of the step above; hatched ones ran meanwhile."""
    steps = run.steps
    parts = {
        "predictor, exposed": (steps.predictor_exposed_s, PREDICTOR, False),
        "allocator, exposed": (steps.allocator_exposed_s, ALLOCATOR, False),
        "predictor, hidden": (steps.predictor_hidden_s, PREDICTOR, True),
        "allocator, hidden": (steps.allocator_hidden_s, ALLOCATOR, True),
    }
    legend: dict[str, BarContainer] = {}
    per_bar = _steps_per_bar(run)
    x = _bars(steps.step.astype(np.float64), per_bar)
    bottom = np.zeros_like(x)
    for label, (seconds, color, is_hidden) in parts.items():
        height = 1000 * _bars(seconds, per_bar)
        look: dict[str, Any] = (
            {"facecolor": "none", "edgecolor": color, "hatch": "////"} if is_hidden else {"color": color}
        )
        bars = axes.bar(x, height, bottom=bottom, width=0.8 * per_bar, linewidth=0.8 if is_hidden else 0, **look)
        bottom = bottom + height
        if is_hidden:
            legend[label] = bars
    axes.set_title("Predictor and allocator: hatched time does not lengthen the step")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="x", visible=False)
    label_steps(axes, int(steps.step[0]), int(steps.step[-1]))
    return legend


def _steps_per_bar(run: RunData) -> int:
    return -(-run.steps.num_steps // MAX_BARS)


def _bars(values: FloatArray, per_bar: int) -> FloatArray:
    """Mean of each `per_bar` consecutive values; NaN (nothing logged) counts as 0."""
    starts = np.arange(0, len(values), per_bar)
    sums = np.add.reduceat(np.nan_to_num(values), starts)
    return sums / np.diff(np.append(starts, len(values)))


def _bar_note(per_bar: int) -> str:
    return "" if per_bar == 1 else f" (each bar: mean of {per_bar} steps)"
