"""Make a log of pass rates whose truth is known, for `vipray backtest`: `vipray simulate-log OUT.json …`.

Prompts of several task types, each at four levels of difficulty; success depends on both, rises with training for most
prompts and never for some. Writes OUT.json (rates by prompt), OUT.truth.parquet (the true probabilities) and, with
--reasoning-gym, OUT.prompts.parquet (real questions) for `vipray backtest OUT.json --prompts OUT.prompts.parquet`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.command import exit_status
from vipray.errors import ConfigError
from vipray.evaluation.synthetic_log import (
    NUM_LEVELS,
    OWN_SPREAD,
    REASONING_GYM_MIX,
    labelled_prompts,
    reasoning_gym_prompts,
    synthetic_log,
    write_synthetic_log,
)


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.simulate_log") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.json", help="the log; the other files are named after it")
    parser.add_argument("--tasks", type=int, default=12, help="task types (default 12)")
    parser.add_argument("--per-level", type=int, default=20, help=f"prompts a level, of {NUM_LEVELS} (default 20)")
    parser.add_argument("--epochs", type=int, default=8, help="visits of each prompt (default 8)")
    parser.add_argument("--trials", type=int, default=8, help="rollouts of a visit (default 8)")
    parser.add_argument(
        "--own-spread", type=float, default=OWN_SPREAD, help=f"of prompts of a level, in logits (default {OWN_SPREAD})"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reasoning-gym", action="store_true", help="questions of reasoning-gym in place of labels")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the options, draw the log, write it and say where."""
    _check(args)
    if args.reasoning_gym:
        prompts = reasoning_gym_prompts(args.tasks, args.per_level, args.seed)
    else:
        prompts = labelled_prompts(args.tasks, args.per_level)
    log = synthetic_log(prompts, epochs=args.epochs, trials=args.trials, seed=args.seed, own_spread=args.own_spread)
    for path in write_synthetic_log(log, args.out):
        print(path)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, minimum in {"tasks": 1, "per_level": 1, "epochs": 1, "trials": 2, "seed": 0}.items():
        if getattr(args, name) < minimum:
            raise ConfigError(f"--{name.replace('_', '-')} must be >= {minimum}, got {getattr(args, name)}")
    if not 0.0 <= args.own_spread < math.inf:
        raise ConfigError(f"--own-spread must be >= 0 and finite, got {args.own_spread}")
    if args.reasoning_gym and args.tasks > len(REASONING_GYM_MIX):
        raise ConfigError(f"--tasks must be <= {len(REASONING_GYM_MIX)} with --reasoning-gym, got {args.tasks}")
    if args.out.suffix != ".json":
        raise ConfigError(f"the log must be named OUT.json, got {args.out}")
    if args.out.is_dir() or not args.out.parent.is_dir():
        raise ConfigError(f"the log must be a file in a folder that exists, got {args.out}")


if __name__ == "__main__":
    sys.exit(main())
