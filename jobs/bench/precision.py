"""How the weights reach the engines: stochastic or nearest rounding to bf16, fp16, or an fp32 engine, by real runs.

Every mode trains the demo, with half of its step, from the same seeds; engine and learner are compared in every step.
Rewards of short runs are noisy: the table shows the mean over the seeds and how far they spread.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

CONFIG = Path("conf/demo.yaml")
MODES = {  # (how weights are published, what the learner computes in)
    "bf16, stochastic; bf16 learner": ("learner.precision=bf16", "weights.rounding=stochastic"),
    "bf16, nearest; fp32 learner": ("learner.precision=fp32", "weights.rounding=nearest"),
    "fp16, nearest; fp32 learner": (
        "learner.precision=fp32", "weights.rounding=nearest", "generators.dtype=float16",
    ),
    "fp32; fp32 learner": ("learner.precision=fp32", "weights.rounding=nearest", "generators.dtype=float32"),
    "bf16, stochastic; fp32 learner": ("learner.precision=fp32", "weights.rounding=stochastic"),
    "bf16, nearest; bf16 learner": ("learner.precision=bf16", "weights.rounding=nearest"),
}  # fmt: skip
_SETTINGS = (  # half of the demo's step, on one engine
    "generators.count=1", "allocation.prompts_per_batch=4", "allocation.rollout_budget=32",
    "evaluation.rollouts_per_prompt=0",
)  # fmt: skip
LEARNING_RATES = (1e-5, 1e-6)
SEEDS = (0, 1, 2)
STEPS = 12
_LAST = 3  # steps whose reward counts as the end of a run
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Run:
    """One run's figures, by step."""

    difference: tuple[float, ...]  # nats, mean over tokens of |engine - learner|
    reward: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True)
class PrecisionBenchmark:
    """Runs by learning rate and mode; a mode that did not run has a reason instead."""

    runs: dict[tuple[float, str], tuple[Run, ...]]
    failures: dict[tuple[float, str], str] = field(default_factory=dict)
    targets: tuple[Any, ...] = ()

    def table(self) -> Table:
        """Means over the seeds, for the terminal."""
        table = Table(title="Published weights: engine against learner, reward and time", title_justify="left")
        for heading in ("learning rate", "mode", "seeds", "difference, last step", "reward, first step", "last 3", "s"):
            table.add_column(heading, justify="left" if heading == "mode" else "right")
        for (rate, mode), runs in self.runs.items():
            table.add_row(f"{rate:g}", mode, str(len(runs)), *_cells(runs))
        for (rate, mode), reason in self.failures.items():
            table.add_row(f"{rate:g}", mode, "0", reason, "", "", "")
        return table

    def as_json(self) -> dict[str, Any]:
        """Every run, step by step."""
        rows = [{"learning_rate": rate, "mode": mode, **asdict(run)} for (rate, mode), run in self._each()]
        return {"runs": rows, "failures": [[*key, reason] for key, reason in self.failures.items()]}

    def _each(self) -> Iterator[tuple[tuple[float, str], Run]]:
        for key, runs in self.runs.items():
            for run in runs:
                yield key, run


def benchmark(
    modes: Sequence[str] = tuple(MODES),
    learning_rates: Sequence[float] = LEARNING_RATES,
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
) -> PrecisionBenchmark:
    """Train the demo in every mode with every learning rate from every seed, one run after the other."""
    runs: dict[tuple[float, str], tuple[Run, ...]] = {}
    failures: dict[tuple[float, str], str] = {}
    for rate in learning_rates:
        for mode in modes:
            found = []
            for seed in seeds:
                result = _train(MODES[mode], rate, seed, steps)
                if isinstance(result, str):
                    failures[rate, mode] = result
                    break
                found.append(result)
            if found:
                runs[rate, mode] = tuple(found)
    return PrecisionBenchmark(runs, failures)


def _train(settings: Sequence[str], rate: float, seed: int, steps: int) -> Run | str:
    """Figures of one run, or the line that says why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *settings, *_SETTINGS, f"learner.learning_rate={rate}", f"run.seed={seed}", f"run.steps={steps}",
            f"run.output_root={folder}", "run.name=bench",
        ]  # fmt: skip
        command = [sys.executable, "-m", "jobs.train", str(CONFIG), *overrides]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"not finished within {_TIMEOUT_S:g} s"
        if done.returncode:
            return ((done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        rows = [json.loads(line) for line in (Path(folder) / "bench" / "metrics.jsonl").read_text().splitlines()]
    return Run(
        difference=tuple(row["engine/logprob_difference/mean"] for row in rows),
        reward=tuple(row["reward/mean"] for row in rows),
        step_s=tuple(row["step/time_s"] for row in rows),
    )


def _cells(runs: Sequence[Run]) -> list[str]:
    ends = [statistics.mean(run.reward[-_LAST:]) for run in runs]
    spread = f" ± {statistics.stdev(ends):.2f}" if len(ends) > 1 else ""
    return [
        f"{statistics.mean(run.difference[-1] for run in runs):.3f} nats",
        f"{statistics.mean(run.reward[0] for run in runs):.2f}",
        f"{statistics.mean(ends):.2f}{spread}",
        f"{statistics.median(s for run in runs for s in run.step_s[1:]):.1f}",
    ]
