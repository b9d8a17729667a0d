"""Ask a toy whether an allocation helps learning, and with which objective: `vipray toy [--seeds 100 …]`.

Trains the toy policy of `vipray.evaluation.toy_policy` on paired seeds for each objective, with uniform counts and with
the allocation that matches the objective, from a predictor's and from perfect predictions (which set the weights of
the loss too), and prints the mean success of all prompts after training. Differences are paired over seeds, with 95 %
t intervals.

What this can show: how objectives and allocations compare where everything is known, that is whether less gradient
variance turns into learning at all, and what perfect predictions would be worth. What it cannot show: effect sizes for
a language model. Its prompts share a handful of linear skills, all rollouts cost the same, policies are never stale,
and there is no KL term, clipping or length; one step of training says nothing about answers not yet seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit

from jobs.command import exit_status
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import check_budget
from vipray.arrays import FloatArray
from vipray.config import PredictorConfig
from vipray.errors import ConfigError
from vipray.evaluation.backtest import Forecaster
from vipray.evaluation.toy_policy import ORACLE, Arm, ToySettings, train
from vipray.predictors.build import PromptKnowledge, make_predictor

OBJECTIVES = ("mean_success", "log_success", "sqrt_success")
PREDICTORS = ("beta", "hybrid")
_MAX_INDUCING = 32  # of hybrid: the toy has a few skills only
_PLAIN_WIDTH = 120  # of the table in a pipe or a file


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, and half the width of its 95 % interval."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.half_width:.4f}"


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.toy") -> int:
    """Parse the command line and carry it out; return the exit status."""
    default = ToySettings()
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="paired seeds, 0 to SEEDS - 1 (default 100)")
    parser.add_argument("--steps", type=int, default=default.steps, help=f"default {default.steps}")
    parser.add_argument("--prompts", type=int, default=default.num_prompts, help=f"default {default.num_prompts}")
    parser.add_argument("--batch", type=int, default=default.batch_size, help=f"a step, default {default.batch_size}")
    parser.add_argument("--budget", type=int, default=default.budget, help=f"rollouts a step, default {default.budget}")
    parser.add_argument("--lower", type=int, default=default.lower, help=f"rollouts a prompt, default {default.lower}")
    parser.add_argument("--upper", type=int, default=default.upper, help=f"rollouts a prompt, default {default.upper}")
    parser.add_argument(
        "--learning-rate", type=float, default=default.learning_rate, help=f"default {default.learning_rate}"
    )
    parser.add_argument("--estimator", choices=sorted(ESTIMATORS), default=default.estimator)
    parser.add_argument("--predictor", choices=PREDICTORS, default="beta", help="with the package's defaults")
    parser.add_argument("--json", type=Path, help="write the final success of every run to this file")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the input, train all arms on all seeds, print the table."""
    settings = _settings(args)
    arms = study_arms(args.predictor)
    final = {arm: np.array([_final_success(settings, arm, seed) for seed in range(args.seeds)]) for arm in arms}
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    console.print(_table(final, settings, args.seeds))
    if args.json is not None:
        args.json.write_text(json.dumps(_as_json(final, settings), indent=1) + "\n")
    return 0


def study_arms(predictor: str) -> list[Arm]:
    """The arms in the order of the table; the first is the reference.

    Predictions set the loss's weights too, so uniform counts are run with both predictions, except for the mean, which
    weighs all prompts the same.
    """
    return [
        Arm(objective, policy, source)
        for objective in OBJECTIVES
        for source in (predictor, ORACLE)
        for policy in ("uniform", "vip")
        if (objective, source, policy) != ("mean_success", ORACLE, "uniform")
    ]


def paired_difference(values: FloatArray, baseline: FloatArray) -> Difference:
    """Difference [S] to [S] paired over S >= 2 seeds, with the t interval."""
    difference = values - baseline
    spread = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return Difference(float(difference.mean()), float(stdtrit(len(difference) - 1, 0.975)) * spread)


def counterpart(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm with uniform counts, of the same objective and predictions, that a matched allocation is compared to."""
    if arm.policy == "uniform":
        return None
    uniform = dataclasses.replace(arm, policy="uniform")
    return uniform if uniform in arms else arms[0]  # the weights of the mean do not depend on predictions


def _settings(args: argparse.Namespace) -> ToySettings:
    """Check all options and return the toy's settings."""
    at_least = {"seeds": 2, "steps": 1, "prompts": 1, "batch": 1, "lower": ESTIMATORS[args.estimator].min_lower}
    for name, minimum in at_least.items():
        if getattr(args, name) < minimum:
            raise ConfigError(f"--{name} must be >= {minimum}, got {getattr(args, name)}")
    if args.batch > args.prompts:
        raise ConfigError(f"--batch must be <= --prompts {args.prompts}, got {args.batch}")
    if not 0.0 < args.learning_rate < math.inf:
        raise ConfigError(f"--learning-rate must be > 0 and finite, got {args.learning_rate}")
    try:
        check_budget(args.batch, args.budget, args.lower, args.upper)
    except ValueError as error:
        raise ConfigError(f"--budget, --lower, --upper: {error}") from None
    if args.json is not None and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ConfigError(f"--json must name a file in a folder that exists, got {args.json}")
    return ToySettings(
        num_prompts=args.prompts,
        batch_size=args.batch,
        budget=args.budget,
        lower=args.lower,
        upper=args.upper,
        steps=args.steps,
        learning_rate=args.learning_rate,
        estimator=args.estimator,
    )


def _final_success(settings: ToySettings, arm: Arm, seed: int) -> float:
    def fresh(ids: Sequence[str], features: FloatArray) -> Forecaster:
        config = PredictorConfig(kind=arm.predictor, array_backend="numpy", num_inducing=_MAX_INDUCING)
        return make_predictor(config, PromptKnowledge(ids, features))

    return float(train(settings, arm, seed, fresh)[-1])


def _table(final: dict[Arm, FloatArray], settings: ToySettings, num_seeds: int) -> Table:
    reference, *_ = final
    title = (
        f"final mean success, {num_seeds} paired seeds, {settings.steps} steps of {settings.budget} rollouts over "
        f"{settings.batch_size} of {settings.num_prompts} prompts, {settings.estimator}"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("objective", "counts", "predictions"):
        table.add_column(heading)
    for heading in ("final success", "vs reference, 95 %", "matched vs uniform, 95 %"):
        table.add_column(heading, justify="right")
    for arm, values in final.items():
        uniform = counterpart(arm, list(final))
        table.add_row(
            arm.objective,
            arm.policy,
            arm.predictor,
            f"{values.mean():.4f}",
            "reference" if arm == reference else str(paired_difference(values, final[reference])),
            "-" if uniform is None else str(paired_difference(values, final[uniform])),
        )
    return table


def _as_json(final: dict[Arm, FloatArray], settings: ToySettings) -> dict[str, Any]:
    reference, *_ = final
    rows = []
    for arm, values in final.items():
        uniform = counterpart(arm, list(final))
        row = {**dataclasses.asdict(arm), "mean": float(values.mean()), "final_success": values.tolist()}
        row["vs_reference"] = dataclasses.asdict(paired_difference(values, final[reference]))
        if uniform is not None:
            row["vs_uniform"] = dataclasses.asdict(paired_difference(values, final[uniform]))
        rows.append(row)
    return {"settings": dataclasses.asdict(settings), "arms": rows}


if __name__ == "__main__":
    sys.exit(main())
