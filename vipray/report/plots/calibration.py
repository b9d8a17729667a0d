"""Predicted against realised success."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vipray.report.plots.canvas import (
    INK,
    MAX_VECTOR_POINTS,
    MUTED,
    SERIES,
    add_legend,
    drawing,
    empty_svg,
    thinning,
    to_svg,
)
from vipray.report.run_data import RunData
from vipray.report.statistics import calibration_bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer

NAME = "calibration"
DESCRIPTION = "Predicted against realised success of each prompt at each step"
NUM_BINS = 10
FIRST, LATER = SERIES[1], SERIES[0]
LARGEST_POINT = 70.0  # area in square points of the prompt with the most rollouts


def calibration_svg(run: RunData) -> str:
    """Draw a point for each prompt of each step, means of prompts predicted alike, and how many those are."""
    if not (run.allocations.trials > 0).any():
        return empty_svg(NAME, DESCRIPTION, "no finished step yet")
    with drawing(6.0) as figure:
        scatter, histogram = figure.subplots(2, 1, sharex=True, height_ratios=(4.2, 1))
        _draw_points(scatter, run)
        (first,) = scatter.plot([], [], color=FIRST, marker="D", alpha=0.5, linestyle="none")
        (later,) = scatter.plot([], [], color=LATER, marker="o", alpha=0.5, linestyle="none")
        (diagonal,) = scatter.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
        means = _draw_means(scatter, run)
        _draw_histogram(histogram, run)
        labels = ["first visit", "later visit", "mean of a bin, 95 % interval", "prediction = outcome"]
        add_legend(figure, [first, later, means, diagonal], labels)
        return to_svg(figure, NAME, DESCRIPTION)


def _draw_points(axes: Axes, run: RunData) -> None:
    table = run.allocations
    seen, first = table.trials > 0, table.is_first_visit
    thin = thinning(int(seen.sum()))
    area = LARGEST_POINT * thin * table.trials / table.trials.max()
    for rows, color, marker in ((seen & first, FIRST, "D"), (seen & ~first, LATER, "o")):
        axes.scatter(
            table.success_prob[rows],
            table.success_rate[rows],
            s=area[rows],
            color=color,
            marker=marker,
            alpha=0.4 * thin,
            linewidths=0,
            clip_on=False,
            rasterized=bool(rows.sum() > MAX_VECTOR_POINTS),
        )
    axes.set_ylabel("realised success rate")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _draw_means(axes: Axes, run: RunData) -> ErrorbarContainer:
    table = run.allocations
    bins = calibration_bins(table.success_prob, table.successes, table.trials, NUM_BINS)
    rate = np.array([b.rate for b in bins])
    below, above = rate - [b.low for b in bins], [b.high for b in bins] - rate
    return axes.errorbar(
        [b.success_prob for b in bins],
        rate,
        yerr=[below, above],
        color=INK,
        linestyle="none",
        marker="s",
        markersize=5,
        linewidth=1.4,
        capsize=3,
    )


def _draw_histogram(axes: Axes, run: RunData) -> None:
    table = run.allocations
    seen, first = table.trials > 0, table.is_first_visit
    edges = np.linspace(0, 1, NUM_BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    later_visits = np.histogram(table.success_prob[seen & ~first], edges)[0]
    first_visits = np.histogram(table.success_prob[seen & first], edges)[0]
    total = later_visits + first_visits
    axes.bar(centres, later_visits, width=0.085, color=LATER, alpha=0.7)
    axes.bar(centres, first_visits, width=0.085, bottom=later_visits, color=FIRST, alpha=0.7)
    for centre, height in zip(centres[total > 0], total[total > 0], strict=True):
        axes.annotate(
            str(height), (centre, height), (0, 2), textcoords="offset points", ha="center", fontsize=8, color=INK
        )
    axes.set_ylim(0, 1.25 * total.max())
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylabel("visits")
    axes.set_xlabel("predicted success probability")
