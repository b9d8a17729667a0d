"""What a disturbed run came to, for the terminal."""

from __future__ import annotations

from rich.table import Table

from vipray.evaluation.chaos_report import ChaosReport, Quantiles


def kinds_table(report: ChaosReport) -> Table:
    """A row for each kind that was killed."""
    table = Table(title="Kills", title_justify="left")
    table.add_column("killed")
    for heading in ("kills", "detected", "covered", "missed"):
        table.add_column(heading, justify="right")
    for heading in ("kill to detection, s", "detection to reissue, s", "detection to replacement, s"):
        table.add_column(f"{heading}\nmedian / 95 % / max", justify="right")
    for row in report.kinds:
        counts = (row.kills, row.detected, row.covered, row.missed)
        times = (row.detection_s, row.recovery_s, row.replacement_s)
        table.add_row(row.kind, *map(str, counts), *map(_seconds, times))
    table.caption = (
        "reissue: what was under way is given to somebody again; replacement: the new one serves; of a driver both are "
        "counted from the kill; covered: made good by the recovery of the actor in whose place it was starting, or of "
        "its driver"
    )
    table.caption_justify = "left"
    return table


def run_table(report: ChaosReport) -> Table:
    """What the whole run came to, and how it differs from the undisturbed one."""
    account, differences = report.account, report.differences
    rows = {
        "run came to its end": "yes" if report.is_complete else "NO",
        "rollouts asked for": f"{account.asked:,}",
        "rollouts issued again": f"{report.reissued:,}",
        "recoveries without a kill": f"{report.unmatched:,}",
        "rollouts lost": str(account.lost),
        "rollouts counted twice": str(account.double),
        "rollouts that nobody asked for": str(account.strange),
        "rollouts in both runs": f"{differences.compared:,}",
        "rollout ids in one run alone": str(differences.ids),
        "prompts with another n": str(differences.n),
        "rewards that differ": _number(differences.rewards),
        "completions that differ": _number(differences.tokens),
        "largest difference of final parameters": _number(report.parameters),
    }
    table = Table(title="The disturbed run beside the undisturbed one", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for what, value in rows.items():
        table.add_row(what, value)
    if differences.rewards is None:
        table.caption = (
            "engines that sample, or an off-policy pipeline, do not answer alike twice: contents are not comparable; "
            "ids and n are of the first step"
        )
        table.caption_justify = "left"
    return table


def _seconds(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "-"
    return f"{quantiles.median:.2f} / {quantiles.p95:.2f} / {quantiles.largest:.2f}"


def _number(value: float | None) -> str:
    return "not comparable" if value is None else f"{value:g}"
