"""What a run says on the terminal while it runs, and what it puts on disk."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from vipray.records import Recovery, TimelineSpan
from vipray.run_log import RunLog


class TrainingObserver:
    """Writes steps, evaluations and recoveries to the run's folder and a line for each to the terminal.

    Args:
        log: the run's folder.
        console: the terminal.
        num_steps: of the whole run.
        first_step: steps that were taken before.
    """

    def __init__(self, log: RunLog, console: Console, num_steps: int, first_step: int = 0) -> None:
        self._log = log
        self._console = console
        self._num_steps = num_steps
        self._started = time.monotonic()
        self.num_steps_done = first_step

    def on_stage(self, text: str) -> None:
        """Say what begins, and how long after the start of the run."""
        self._console.print(f"{time.monotonic() - self._started:6.1f} s  {text}", style="dim")

    def on_step(self, metrics: Mapping[str, float], allocation_rows: list[dict[str, Any]]) -> None:
        """Log a step and print its line."""
        self._log.add_step(metrics, allocation_rows)
        self.num_steps_done += 1
        counts = [row["n"] for row in allocation_rows]
        exposed_ms = 1000 * (metrics["predictor/exposed_s"] + metrics["allocator/exposed_s"])
        hidden_ms = 1000 * (metrics["predictor/hidden_s"] + metrics["allocator/hidden_s"])
        difference = metrics["engine/logprob_difference/mean"]  # NaN where all tokens are of an older version
        compared = "" if math.isnan(difference) else f"  engine-learner {difference:.3f} nats"
        self._console.print(
            f"step {self.num_steps_done:>3}/{self._num_steps}  reward {metrics['reward/mean']:.3f}  "
            f"n {min(counts)}-{max(counts)} of {sum(counts)}  "
            f"{metrics['step/time_s']:.1f} s = generate {metrics['time/generation_s']:.1f} "
            f"+ train {metrics['time/training_s']:.1f} + publish {metrics['time/publishing_s']:.1f} "
            f"+ load {metrics['time/loading_s']:.1f}  "
            f"plan {exposed_ms:.1f} ms exposed, {hidden_ms:.1f} hidden{compared}"
        )

    def on_spans(self, spans: list[TimelineSpan]) -> None:
        """Log who was at work when."""
        self._log.add_spans(spans)

    def on_recovery(self, recovery: Recovery) -> None:
        """Log how a loss was made good, and say it in a line."""
        self._log.add_recovery(dataclasses.asdict(recovery))
        reissued = f", {recovery.num_reissued} rollouts made again" if recovery.num_reissued else ""
        seconds = recovery.reissued_at_s - recovery.lost_at_s
        self.on_stage(f"recovered from the loss of {recovery.actor} in {seconds:.2f} s{reissued}: {recovery.cause}")

    def on_evaluation(self, rows: list[dict[str, Any]]) -> None:
        """Log an evaluation and print success by task."""
        self._log.add_evaluation(rows)
        successes: dict[str, int] = {}
        trials: dict[str, int] = {}
        for row in rows:
            successes[row["task"]] = successes.setdefault(row["task"], 0) + row["successes"]
            trials[row["task"]] = trials.setdefault(row["task"], 0) + row["trials"]
        shares = "  ".join(f"{task} {successes[task] / max(1, trials[task]):.2f}" for task in sorted(trials))
        self._console.print(f"success with equal n: {shares}")
