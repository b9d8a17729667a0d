"""The `vipray` command: one subcommand for each module of `jobs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from jobs import backtest, data, export, simulate, simulate_log, toy, train, verify
from jobs.bench import command as bench
from jobs.chaos import command as chaos
from vipray import __version__

COMMANDS: dict[str, tuple[Callable[..., int], str]] = {
    "train": (train.main, "train a model with adaptive rollout allocation"),
    "data": (data.main, "show the prompts that a configuration would train on"),
    "backtest": (backtest.main, "judge predictors and allocation policies on a log of pass rates"),
    "simulate": (simulate.main, "run a configuration's pipeline with scripted engines in virtual time"),
    "toy": (toy.main, "compare objectives and allocations on a toy whose truth is known"),
    "simulate-log": (simulate_log.main, "make a log of pass rates whose truth is known, for backtest"),
    "verify": (verify.main, "score answers from a file"),
    "export": (export.main, "make a model of a checkpoint"),
    "bench": (bench.main, "time the parts beside what one would otherwise use"),
    "chaos": (chaos.main, "disturb a training on purpose, and compare it with one that was not"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 2 for bad input, with one line that says what is wrong."""
    summary = "\n".join(f"  {name:<13} {what}" for name, (_, what) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="vipray",
        description="Reinforcement learning with verifiable rewards that spends rollouts where they teach.",
        epilog=f"commands:\n{summary}\n\n`vipray COMMAND --help` says more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vipray {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="arguments of the command")
    args = parser.parse_args(argv)
    command, _ = COMMANDS[args.command]
    return command(args.rest, prog=f"vipray {args.command}")


if __name__ == "__main__":
    sys.exit(main())
