"""Reward over the steps, and the evaluations around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vipray.report.plots.canvas import (
    INK,
    MAX_VECTOR_POINTS,
    MUTED,
    TaskStyle,
    add_legend,
    drawing,
    empty_svg,
    label_steps,
    task_styles,
    to_svg,
    trend_window,
)
from vipray.report.run_data import RunData
from vipray.report.statistics import Proportion, trailing_mean
from vipray.report.summary import TaskSummary, task_summaries, total_summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

NAME = "reward"
DESCRIPTION = "Mean reward by step, success rate by task, and evaluation before and after training"
LONG_RUN_STEPS = 100  # from here on, the line of single steps is a band of ink


def reward_svg(run: RunData) -> str:
    """Draw mean reward and success rate by task over the steps; below, the evaluations by task."""
    has_steps, has_evaluation = run.steps.num_steps > 0, len(run.evaluations.step) > 0
    if not has_steps and not has_evaluation:
        return empty_svg(NAME, DESCRIPTION, "no finished step yet")
    bars_in = 0.9 + 0.42 * (len(run.tasks) + 1) if has_evaluation else 0.0
    curves_in = 3.3 if has_steps else 0.0
    with drawing(curves_in + bars_in + 0.3) as figure:
        heights = [height for height in (curves_in, bars_in) if height]
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        if has_steps:
            _draw_curves(figure, panels[0], run)
        if has_evaluation:
            _draw_evaluations(panels[-1], run)
        return to_svg(figure, NAME, DESCRIPTION)


def _draw_curves(figure: Figure, axes: Axes, run: RunData) -> None:
    steps, table = run.steps, run.allocations
    window = trend_window(steps.num_steps)
    index = np.searchsorted(steps.step, table.step)
    rates = table.success_rate
    handles, labels = [], []
    for task, style in task_styles(run.tasks).items():
        rows = table.task == task
        if not rows.any():
            continue
        each = trailing_mean(index[rows], rates[rows], steps.num_steps, 1)
        trend = trailing_mean(index[rows], rates[rows], steps.num_steps, window)
        if window > 1:
            rasterized = steps.num_steps > MAX_VECTOR_POINTS
            axes.scatter(steps.step, each, s=9, color=style.color, alpha=0.3, linewidths=0, rasterized=rasterized)
        marker = "o" if window == 1 else ""
        handles += axes.plot(
            steps.step,
            trend,
            color=style.color,
            linestyle=style.linestyle,
            marker=marker,
            markersize=3.5,
            linewidth=1.8,
        )
        labels.append(style.label)
    handles.append(_draw_reward(axes, run))
    labels.append("batch mean reward")
    add_legend(figure, handles, labels)
    lines = "lines" if steps.num_steps >= LONG_RUN_STEPS else "task lines"
    axes.set_title("Training" if window == 1 else f"Training ({lines}: mean of the last {window} steps)")
    axes.set_ylabel("success rate, reward")
    low, high = np.nanmin([0.0, *steps.reward_mean]), np.nanmax([1.0, *steps.reward_mean])
    axes.set_ylim(low - 0.03, high + 0.03)
    label_steps(axes, int(steps.step[0]), int(steps.step[-1]))


def _draw_reward(axes: Axes, run: RunData) -> Line2D:
    """Draw each step's mean reward, with its trend where the steps are too many to tell apart."""
    steps = run.steps
    if steps.num_steps < LONG_RUN_STEPS:
        (line,) = axes.plot(steps.step, steps.reward_mean, color=INK, linewidth=1.2, marker="o", markersize=3)
        return line
    axes.plot(steps.step, steps.reward_mean, color=INK, linewidth=0.5, alpha=0.25)
    window = trend_window(steps.num_steps)
    trend = trailing_mean(np.arange(steps.num_steps), steps.reward_mean, steps.num_steps, window)
    (line,) = axes.plot(steps.step, trend, color=INK, linewidth=1.5)
    return line


def _draw_evaluations(axes: Axes, run: RunData) -> None:
    from matplotlib.patches import Patch

    rows = [*task_summaries(run), total_summary(run)]
    styles = [*task_styles(run.tasks).values(), TaskStyle(MUTED, "-", rows[-1].task)]
    for y, (row, style) in enumerate(zip(rows, styles, strict=True)):
        _draw_bar(axes, row.before, y - 0.19, style.color, 0.4)
        _draw_bar(axes, row.after, y + 0.19, style.color, 1.0)
    axes.set_yticks(range(len(rows)), [style.label for style in styles])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.0)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(_evaluation_title(rows))
    axes.set_xlabel("success rate, with 95 % interval")
    axes.legend(
        [Patch(color=MUTED, alpha=0.4), Patch(color=MUTED)],
        ["before", "after"],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=2,
        borderpad=0,
        handlelength=1.2,
    )


def _evaluation_title(rows: list[TaskSummary]) -> str:
    if all(row.after is None for row in rows):
        return "Evaluation (before only)"
    return "Evaluation (after only)" if all(row.before is None for row in rows) else "Evaluation"


def _draw_bar(axes: Axes, value: Proportion | None, y: float, color: str, alpha: float) -> None:
    if value is None or not value.trials:
        return
    low, high = value.interval
    axes.barh(y, value.rate, height=0.34, color=color, alpha=alpha, linewidth=0)
    axes.errorbar(value.rate, y, xerr=[[value.rate - low], [high - value.rate]], color=INK, linewidth=1, capsize=2)
