"""Where the rollouts went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vipray.report.plots.canvas import (
    INK,
    MAX_VECTOR_POINTS,
    add_legend,
    drawing,
    empty_svg,
    label_steps,
    task_styles,
    thinning,
    to_svg,
    trend_window,
)
from vipray.report.run_data import RunData
from vipray.report.statistics import trailing_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

NAME = "allocation"
DESCRIPTION = "Rollouts of each prompt against its predicted success, and mean rollouts a prompt by task over the steps"


def allocation_svg(run: RunData) -> str:
    """Draw n against the prediction that it was made from; below, mean n by task over the steps."""
    if not len(run.allocations.n):
        return empty_svg(NAME, DESCRIPTION, "no finished step yet")
    with drawing(6.2) as figure:
        scatter, curves = figure.subplots(2, 1, height_ratios=(1.15, 1))
        _draw_points(scatter, run)
        lines = _draw_means(curves, run)
        uniform = float(run.allocations.n.mean())
        for axes in (scatter, curves):
            line = axes.axhline(uniform, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        styles = task_styles(run.tasks)
        add_legend(
            figure, [*lines.values(), line], [*(styles[task].label for task in lines), f"uniform, n = {uniform:.3g}"]
        )
        return to_svg(figure, NAME, DESCRIPTION)


def _draw_points(axes: Axes, run: RunData) -> None:
    from matplotlib.ticker import MaxNLocator

    table = run.allocations
    thin = thinning(len(table.n))
    for task, style in task_styles(run.tasks).items():
        rows = table.task == task
        axes.scatter(
            table.success_prob[rows],
            table.n[rows],
            s=22 * thin,
            color=style.color,
            alpha=0.5 * thin,
            linewidths=0,
            clip_on=False,
            rasterized=bool(len(rows) > MAX_VECTOR_POINTS),
        )
    axes.set_title("Each prompt at each step")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.08 * table.n.max())
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("predicted success probability")
    axes.set_ylabel("rollouts n")


def _draw_means(axes: Axes, run: RunData) -> dict[str, Line2D]:
    steps, table = run.steps, run.allocations
    window = trend_window(steps.num_steps)
    index = np.searchsorted(steps.step, table.step)
    lines, highest = {}, 0.0
    for task, style in task_styles(run.tasks).items():
        rows = table.task == task
        if not rows.any():
            continue
        trend = trailing_mean(index[rows], table.n[rows].astype(np.float64), steps.num_steps, window)
        highest = max(highest, float(np.nanmax(trend)))
        marker = "o" if window == 1 else ""
        (lines[task],) = axes.plot(
            steps.step,
            trend,
            color=style.color,
            linestyle=style.linestyle,
            marker=marker,
            markersize=3.5,
            linewidth=1.8,
        )
    axes.set_title("Mean of a task's prompts" + ("" if window == 1 else f" (last {window} steps)"))
    axes.set_ylim(0, 1.08 * highest)
    axes.set_ylabel("mean rollouts n")
    label_steps(axes, int(steps.step[0]), int(steps.step[-1]))
    return lines
