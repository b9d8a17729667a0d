"""What a benchmark found, as values and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

_UNITS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1.0, "B")),
    "times": ((1.0, "times"),),  # a ratio
    "per_s": ((1.0, "a second"),),
    "share": ((0.01, "%"),),
}
_PLAIN_FROM = 999.5  # three significant figures would be written with an exponent


@dataclass(frozen=True)
class Comparison:
    """One measurement beside that of an alternative, from the same run.

    Attributes:
        what: what was measured.
        ours: seconds or bytes.
        alternative: what else would do the job.
        theirs: its seconds or bytes; None where it did not end in time.
        unit: `s` or `bytes`.
        paper: what the paper states for its own machine, or nothing.
        note: what else to know of the alternative.
    """

    what: str
    ours: float
    alternative: str
    theirs: float | None
    unit: str = "s"
    paper: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the alternative takes what we take."""
        return None if self.theirs is None else self.theirs / self.ours


@dataclass(frozen=True)
class Target:
    """A limit that a measurement should keep: an upper one, or a lower one where `at_least` is set."""

    what: str
    limit: float
    measured: float
    unit: str = "s"
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit was kept."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "within"
        figures = f"{bound} {quantity(self.limit, self.unit)}: {quantity(self.measured, self.unit)}"
        return f"target {self.what} {figures}, {'met' if self.met else 'missed'}"


@dataclass(frozen=True)
class Benchmark:
    """All that one benchmark found; `details` is for the JSON file alone, and must fit into it."""

    title: str
    comparisons: tuple[Comparison, ...]
    targets: tuple[Target, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> Table:
        """The comparisons for the terminal."""
        table = Table(title=self.title, title_justify="left")
        for heading in ("what", "ours", "alternative", "theirs", "ratio", "paper (its machine)", "note"):
            table.add_column(heading, justify="right" if heading in ("ours", "theirs", "ratio") else "left")
        for row in self.comparisons:
            theirs = "-" if row.theirs is None else quantity(row.theirs, row.unit)
            ratio = "-" if row.ratio is None else f"{row.ratio:,.{0 if row.ratio >= 100 else 2}f}"
            ours = quantity(row.ours, row.unit)
            table.add_row(row.what, ours, row.alternative, theirs, ratio, row.paper or "-", row.note)
        return table

    def as_json(self) -> dict[str, Any]:
        """Everything, ratios and verdicts included."""
        return {
            "title": self.title,
            "comparisons": [dataclasses.asdict(row) | {"ratio": row.ratio} for row in self.comparisons],
            "targets": [dataclasses.asdict(target) | {"met": target.met} for target in self.targets],
            "details": dict(self.details),
        }


def quantity(value: float, unit: str) -> str:
    """Seconds or bytes in a unit that suits their size; ratios and rates as they are.

    >>> quantity(0.00123, "s"), quantity(1.156e9, "bytes"), quantity(2.345, "times")
    ('1.23 ms', '1.16 GB', '2.35 times')
    """
    scale, name = next((pair for pair in _UNITS[unit] if value >= pair[0]), _UNITS[unit][-1])
    figure = value / scale
    return f"{figure:,.0f} {name}" if figure >= _PLAIN_FROM else f"{figure:.3g} {name}"
