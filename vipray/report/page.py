"""The report as one HTML page that needs nothing else: plots and styles are inline, and there are no scripts."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from vipray.report import summary
from vipray.report.recoveries import recovery_rows
from vipray.report.run_data import RunData, load_run
from vipray.report.trace import TRACE_FILE, write_trace

REPORT_FILE = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder, in one piece, and return its path.

    Where the run recorded a timeline, `trace.json` is written beside it.

    Raises:
        ConfigError: `run_dir` is no run folder, or a file in it was not written by a run.
    """
    run = load_run(run_dir)
    page = render_page(run)
    path = run_dir / REPORT_FILE
    unfinished = run_dir / f".{REPORT_FILE}.{os.getpid()}"
    try:
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if run.timeline:
        write_trace(run.timeline, run_dir / TRACE_FILE)
    return path


def render_page(run: RunData) -> str:
    """Render the report of a run as HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from vipray.report.plots import allocation_svg, calibration_svg, reward_svg, time_split_svg, timeline_svg

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "count": summary.count,
        "number": summary.number,
        "percent": summary.percent,
        "proportion": summary.proportion,
    }
    template = environment.from_string(files("vipray.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        name=run.path.resolve().name,
        headline=summary.headline(run),
        tasks=[*summary.task_summaries(run), summary.total_summary(run)],
        has_evaluation=len(run.evaluations.step) > 0,
        scores=summary.prediction_scores(run),
        plots={  # matplotlib escapes the text in its SVG
            "reward": Markup(reward_svg(run)),
            "calibration": Markup(calibration_svg(run)),
            "allocation": Markup(allocation_svg(run)),
            "time_split": Markup(time_split_svg(run)),
            "timeline": Markup(timeline_svg(run)) if run.timeline else None,
        },
        is_overlapping=run.steps.is_overlapping,
        recoveries=recovery_rows(run.recoveries),
        step_times=summary.step_time_table(run),
        config_text=run.config_text,
    )
