"""The picture of a backtest: the variance ratio of each predictor by how often a prompt had been seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vipray.evaluation.backtest import BUCKETS, Scores

_WORST_SHOWN = 1.25  # ratios above it are drawn at the edge, so that the others can be told apart


def save_plot(results: Mapping[str, Mapping[str, Scores]], path: Path) -> None:
    """Draw one line a row of the table, by bucket, with 95 % intervals; the file's ending names the format."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    buckets = [name for name in BUCKETS if any(name in scores for scores in results.values())]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=[colormaps["tab20"](index / 20) for index in range(20)])
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--", label="uniform")
    for place, (name, scores) in enumerate(results.items()):
        shown = [bucket for bucket in buckets if bucket in scores]
        x = [buckets.index(bucket) + 0.02 * (place - len(results) / 2) for bucket in shown]
        y = [min(scores[bucket].ratio, _WORST_SHOWN) for bucket in shown]
        low = [value - min(scores[b].ratio_interval[0], value) for b, value in zip(shown, y, strict=True)]
        high = [max(scores[b].ratio_interval[1], value) - value for b, value in zip(shown, y, strict=True)]
        axes.errorbar(x, y, yerr=[low, high], marker="o", markersize=3, linewidth=1, capsize=2, label=name)
    axes.set_xticks(range(len(buckets)), buckets)
    axes.set_ylim(top=_WORST_SHOWN + 0.02)
    axes.set_xlabel("earlier visits of the prompt")
    axes.set_ylabel("gradient variance relative to uniform")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
