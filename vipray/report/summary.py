"""The numbers of a report: one row a task, and the headline of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vipray.report.run_data import RunData
from vipray.report.statistics import PredictionError, Proportion, batch_mean, prediction_error
from vipray.report.timeline import step_times

NOT_KNOWN = "-"
TIMELINE_STEPS = 5  # whose times are shown one by one
EDGE_STEPS = 3  # steps at either end of a run that its headline averages over


@dataclass(frozen=True)
class TaskSummary:
    """What a task (or the whole run) got and gave. Rates are NaN, proportions None, where there is nothing to count.

    Attributes:
        task: its name.
        num_prompts: distinct prompts that got rollouts.
        num_rollouts: rollouts allocated.
        budget_share: of all rollouts of the run, in [0, 1].
        mean_success_prob: mean over visits of the prediction made before the rollouts.
        first_third: mean over visits of the success rate, in the first third of the steps.
        last_third: the same in the last third.
        before: evaluation before the first step.
        after: the last evaluation after it.
    """

    task: str
    num_prompts: int
    num_rollouts: int
    budget_share: float
    mean_success_prob: float
    first_third: float
    last_third: float
    before: Proportion | None
    after: Proportion | None


def task_summaries(run: RunData) -> list[TaskSummary]:
    """Summarise each task, in alphabetical order."""
    return [
        _summary(run, task, run.allocations.task == task, *evaluation_of(run, run.evaluations.task == task))
        for task in run.tasks
    ]


def total_summary(run: RunData) -> TaskSummary:
    """Summarise the run over all tasks."""
    everything = np.ones(len(run.allocations.n), dtype=np.bool_)
    return _summary(
        run, "all tasks", everything, *evaluation_of(run, np.ones(len(run.evaluations.step), dtype=np.bool_))
    )


def _summary(
    run: RunData, name: str, rows: npt.NDArray[np.bool_], before: Proportion | None, after: Proportion | None
) -> TaskSummary:
    table = run.allocations
    steps = run.steps.step
    third = max(1, len(steps) // 3)
    num_rollouts = int(table.n[rows].sum())
    budget = int(table.n.sum())
    return TaskSummary(
        task=name,
        num_prompts=len(np.unique(table.prompt_id[rows])),
        num_rollouts=num_rollouts,
        budget_share=num_rollouts / budget if budget else math.nan,
        mean_success_prob=mean(table.success_prob[rows]),
        first_third=mean(table.success_rate[rows & np.isin(table.step, steps[:third])]),
        last_third=mean(table.success_rate[rows & np.isin(table.step, steps[-third:])]),
        before=before,
        after=after,
    )


def evaluation_of(run: RunData, rows: npt.NDArray[np.bool_]) -> tuple[Proportion | None, Proportion | None]:
    """Pool the evaluation rows ([E] mask) before the first step, and those of the last evaluation after it."""
    table = run.evaluations
    later = table.step[table.step > 0]
    return _pooled(run, rows & (table.step == 0)), _pooled(run, rows & (table.step == later.max())) if len(
        later
    ) else None


def _pooled(run: RunData, rows: npt.NDArray[np.bool_]) -> Proportion | None:
    table = run.evaluations
    return Proportion(int(table.successes[rows].sum()), int(table.trials[rows].sum())) if rows.any() else None


@dataclass(frozen=True)
class PredictionScore:
    """Error of the predictions of some visits, beside that of one constant for each step.

    The constant is the step's success rate, which is known only after its rollouts.
    """

    visits: str
    predicted: PredictionError
    constant: PredictionError


def prediction_scores(run: RunData) -> list[PredictionScore]:
    """Score the predictions of all visits, of first visits and of later ones."""
    table = run.allocations
    constant = batch_mean(table.step, table.successes, table.trials)
    first = table.is_first_visit
    masks = {"all": np.ones_like(first), "first": first, "later": ~first}
    return [
        PredictionScore(
            visits=name,
            predicted=prediction_error(table.success_prob[rows], table.successes[rows], table.trials[rows]),
            constant=prediction_error(constant[rows], table.successes[rows], table.trials[rows]),
        )
        for name, rows in masks.items()
    ]


@dataclass(frozen=True)
class StepTimeTable:
    """Where the time of the last steps went, and of all on average: one column each.

    Attributes:
        columns: headings.
        rows: label and cells of each row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def step_time_table(run: RunData) -> StepTimeTable | None:
    """Write the timeline's times as text; None where no step was trained in it."""
    times = step_times(run.timeline)
    if not len(times.step):
        return None
    seconds = {
        "Time": times.duration_s,
        "Generation": times.generation_s,
        "Verification": times.verification_s,
        "Training": times.training_s,
        "Publishing": times.publishing_s,
        "Predictor, hidden": times.predictor_hidden_s,
        "Predictor, exposed": times.predictor_exposed_s,
        "Allocator, hidden": times.allocator_hidden_s,
        "Allocator, exposed": times.allocator_exposed_s,
    }
    shares = {"Generators idle": times.generator_idle, "Learner idle": times.learner_idle}
    last = [f"step {step}" for step in times.step[-TIMELINE_STEPS:].tolist()]
    return StepTimeTable(
        columns=(*last, f"mean of {len(times.step)}"),
        rows=tuple(
            (label, tuple(write(value) for value in [*values[-TIMELINE_STEPS:].tolist(), mean(values)]))
            for named, write in ((seconds, duration), (shares, percent))
            for label, values in named.items()
        ),
    )


def headline(run: RunData) -> list[tuple[str, str]]:
    """Label and value of each line of the headline table."""
    steps = run.steps
    total = total_summary(run)
    lines = [
        ("Steps", count(steps.num_steps)),
        ("Rollouts", count(int(steps.num_rollouts.sum()))),
        ("Tokens in rollouts", count(int(steps.num_tokens.sum()))),
        ("Time of all steps", duration(float(steps.time_s.sum()))),
        _reward(run),
        ("Evaluation, all tasks, before → after", f"{proportion(total.before)} → {proportion(total.after)}"),
        ("Groups without signal (all rewards equal)", _groups_without_signal(run)),
        ("Predictor and allocator exposed", _exposed(run)),
        ("Engine/learner log-prob difference, mean", significant(mean(steps.logprob_difference_mean))),
        ("Batches that differ in size from their allocation", _wrong_size_batches(run)),
    ]
    if run.num_skipped_lines:
        lines.append(("Half-written lines of the metrics, skipped", count(run.num_skipped_lines)))
    return lines


def _reward(run: RunData) -> tuple[str, str]:
    reward = run.steps.reward_mean
    edge = min(EDGE_STEPS, len(reward) // 2)  # the two ends never share a step
    if not edge:
        return "Mean reward", number(mean(reward))
    label = f"Mean reward, first {plural(edge, 'step')} → last {plural(edge, 'step')}"
    return label, f"{number(mean(reward[:edge]))} → {number(mean(reward[-edge:]))}"


def _groups_without_signal(run: RunData) -> str:
    groups, without_signal = len(run.allocations.n), int(run.steps.num_groups_without_signal.sum())
    return f"{count(without_signal)} of {count(groups)} ({percent(without_signal / groups)})" if groups else NOT_KNOWN


def _exposed(run: RunData) -> str:
    exposed_s, time_s = float(run.steps.exposed_s.sum()), float(run.steps.time_s.sum())
    if not time_s:
        return NOT_KNOWN
    return f"{percent(exposed_s / time_s)} of the steps' time ({duration(exposed_s)} of {duration(time_s)})"


def _wrong_size_batches(run: RunData) -> str:
    known = np.isin(run.steps.step, run.allocations.step)
    if not known.any():
        return NOT_KNOWN
    allocated = np.array([run.allocations.n[run.allocations.step == step].sum() for step in run.steps.step[known]])
    wrong = int((allocated != run.steps.num_rollouts[known]).sum())
    return f"{count(wrong)} of {count(int(known.sum()))}" if wrong else "none"


def mean(values: npt.NDArray[np.float64]) -> float:
    """Mean of the values that are not NaN; NaN where there are none."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else math.nan


def number(value: float, digits: int = 2) -> str:
    """A value with a fixed number of decimals."""
    return NOT_KNOWN if math.isnan(value) else f"{value:.{digits}f}"


def significant(value: float) -> str:
    """A value of unknown magnitude, with two significant digits."""
    return NOT_KNOWN if math.isnan(value) else f"{value:.2g}"


def count(value: int) -> str:
    """A whole number with thousands separated."""
    return f"{value:,}"


def percent(share: float) -> str:
    """A share of the whole; smaller shares with more digits."""
    if math.isnan(share):
        return NOT_KNOWN
    return f"{100 * share:.2f} %" if 0 < share < 0.01 else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if math.isnan(seconds):
        return NOT_KNOWN
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def proportion(value: Proportion | None) -> str:
    """A rate with its 95 % interval."""
    if value is None or not value.trials:
        return NOT_KNOWN
    low, high = value.interval
    return f"{value.rate:.2f} [{low:.2f}, {high:.2f}]"


def rate(value: Proportion | None) -> str:
    """A rate without its interval."""
    return NOT_KNOWN if value is None else number(value.rate)


def plural(number_of: int, noun: str) -> str:
    """A counted noun."""
    return f"{number_of} {noun}" if number_of == 1 else f"{number_of} {noun}s"
