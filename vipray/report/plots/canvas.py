"""What the plots share: colours that follow the page's theme, legends, and the way from a figure to SVG.

Matplotlib is imported when a plot is drawn. Only its object interface is used, and its settings are changed for
the time of one drawing only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 6.0  # a phone shows it at about 60 %, which keeps the text legible
FONT_PT = 10.0
MAX_VECTOR_POINTS = 3000  # larger clouds are embedded as an image, so that long runs keep the page small
MAX_NAME_CHARS = 28

# The page redefines each colour for the dark theme; on its own, an SVG shows these.
INK, MUTED, GRID, PAPER = "#1f2430", "#6b7280", "#e1e4ea", "#fefefe"
SERIES = ("#1f6fb4", "#d4570a", "#0a8f6c", "#b8589a", "#c98a00", "#3fa3d9", "#8a5a44", "#7a6fd0")
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--series-{number}" for number, color in enumerate(SERIES)
}
LINE_STYLES = ("-", "--", ":", "-.")


class TaskStyle(NamedTuple):
    """How a task looks in every plot."""

    color: str
    linestyle: str
    label: str


def task_styles(tasks: Sequence[str]) -> dict[str, TaskStyle]:
    """Give each task a colour, and another line style each time the colours run out."""
    return {
        task: TaskStyle(
            color=SERIES[number % len(SERIES)],
            linestyle=LINE_STYLES[number // len(SERIES) % len(LINE_STYLES)],
            label=short_name(task),
        )
        for number, task in enumerate(tasks)
    }


def short_name(name: str) -> str:
    """Cut a long name; keep a leading underscore visible, which matplotlib takes for "not in the legend"."""
    name = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"
    return f" {name}" if name.startswith("_") else name


@contextmanager
def drawing(height_in: float) -> Iterator[Figure]:
    """Yield an empty figure to draw on, under settings that end with the block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        yield Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


_SETTINGS: dict[Any, Any] = {  # matplotlib types its keys as literals, which differ by version
    "svg.fonttype": "none",
    "svg.hashsalt": "vipray",
    "text.parse_math": False,  # a task name may hold a dollar sign
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": FONT_PT,
    "xtick.labelsize": FONT_PT - 1,
    "ytick.labelsize": FONT_PT - 1,
    "legend.fontsize": FONT_PT - 0.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "hatch.linewidth": 1.2,
    "figure.constrained_layout.hspace": 0.06,  # between panels, as a share of their height
}


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Render a figure as one `<svg>` element that can stand beside others in a page.

    Args:
        figure: made by `drawing`, which must still be open.
        name: prefix of the element's ids, unique in the page.
        description: what a screen reader says.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"\b(fill|stroke): (#[0-9a-f]{6})", _themed, svg)
    svg = re.sub(r'^<svg( [^>]*?) width="[^"]*"', r"<svg\1", svg)
    svg = re.sub(r'^<svg( [^>]*?)? height="[^"]*"', r"<svg\1", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def _themed(match: re.Match[str]) -> str:
    prop, color = match.groups()
    return f"{prop}: var({VARIABLES[color]}, {color})" if color in VARIABLES else match.group()


def empty_svg(name: str, description: str, message: str) -> str:
    """Draw a message in place of a plot that has nothing to show."""
    with drawing(1.0) as figure:
        figure.text(0.5, 0.5, message, ha="center", va="center", color=MUTED)
        return to_svg(figure, name, description)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put a legend above the axes, in as many columns as its longest label allows.

    Args:
        figure: made by `drawing`.
        handles: artists or containers of artists; matplotlib takes both, its types know only the first.
        labels: one for each handle.
    """
    longest = max(len(label) for label in labels)
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=max(1, min(len(labels), int(84 / (longest + 8)))),
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
    )


def label_steps(axes: Axes, first: int, last: int) -> None:
    """Make the horizontal axis one of whole steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step")
    axes.set_xlim(first - 0.6, last + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def thinning(num_points: int) -> float:
    """Factor in (0, 1] for the size and opacity of points, so that a large cloud still shows where it is dense."""
    return max(0.2, min(1.0, (400 / max(num_points, 1)) ** 0.5))


def trend_window(num_steps: int) -> int:
    """Steps that a trend line averages over: short runs are shown as they are."""
    return 1 if num_steps < 10 else max(5, num_steps // 20)
