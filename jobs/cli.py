"""The `vipray` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jobs import train
from jobs.command import exit_status
from vipray import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 2 for bad input, with one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="vipray", description="RL with adaptive rollout allocation.")
    parser.add_argument("--version", action="version", version=f"vipray {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    train.add_arguments(commands.add_parser("train", help="train a model", description=train.__doc__))
    args = parser.parse_args(argv)
    return exit_status(args.command_function, args)


if __name__ == "__main__":
    sys.exit(main())
