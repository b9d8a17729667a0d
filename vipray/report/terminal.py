"""The final table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vipray.report.run_data import RunData
from vipray.report.summary import TaskSummary, count, number, percent, plural, rate, task_summaries, total_summary

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COLUMNS = (
    "prompts",
    "rollouts",
    "budget",
    "predicted",
    "first\nthird",
    "last\nthird",
    "evaluation",
)  # fit 80 characters


def summary_table(run: RunData) -> Table:
    """Build the table of a run: a row a task, then all tasks together.

    `predicted` is the mean prediction, `first third` and `last third` are success rates in training (mean over
    prompts), `evaluation` is the success rate before and after training with equal n.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = Text(f"{run.path.resolve().name}: {plural(run.steps.num_steps, 'step')}")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 0))
    table.add_column("task", overflow="fold", min_width=12)
    for name in COLUMNS:
        table.add_column(name, justify="right", vertical="bottom")
    for summary in task_summaries(run):
        table.add_row(*_cells(summary))
    table.add_section()
    table.add_row(*_cells(total_summary(run)), style="bold")
    return table


def _cells(summary: TaskSummary) -> list[Text | str]:
    from rich.text import Text

    return [
        Text(summary.task),  # not a string: brackets in a name are no markup
        count(summary.num_prompts),
        count(summary.num_rollouts),
        percent(summary.budget_share),
        number(summary.mean_success_prob),
        number(summary.first_third),
        number(summary.last_third),
        f"{rate(summary.before)}→{rate(summary.after)}",
    ]
