r"""Score answers from a file: `vipray verify --verifier math --input pairs.jsonl > scored.jsonl`.

Reads lines of JSON such as {"answer": "So \\boxed{3}.", "gold": "3"} (`-` for stdin): `answer` is a model's whole
completion, `gold` the right answer, a string or a number, which is taken digit by digit as it is written. A list
`aliases` may hold further right answers, for the verifiers qa and qa_f1. Writes each line to stdout, in order, with
`reward`, `outcome` (correct, wrong, timeout, error or unscorable), `extracted` and `reason` added; other keys pass
through. Answers are scored in child processes: one that hangs or crashes costs its own score and nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TextIO

from jobs.command import exit_status
from vipray.config import PythonTestsConfig, VerifierConfig
from vipray.data.prompts import VERIFIERS_WITH_ALIASES, Prompt
from vipray.errors import ConfigError
from vipray.verifiers.build import VERIFIERS
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.protocol import Score
from vipray.verifiers.workers import VerifierPool

_NEED_A_RUN = ("reasoning_gym",)  # its golds are places in a data set
_SHARE_OF_TESTS = 0.8  # of the limit of an answer, for the tests of `python_tests`


class Number(str):
    """A number of a JSON text, as it is written there."""


@dataclass(frozen=True)
class Row:
    """A line of the input."""

    number: int
    answer: str
    gold: str
    aliases: tuple[str, ...]
    text: str  # JSON of all its keys but those that are added

    def prompt(self, verifier: str) -> Prompt:
        """The gold as a verifier wants it."""
        name = f"line {self.number}"
        return Prompt(name, verifier, self.number, "", self.gold, verifier=verifier, aliases=self.aliases)

    def scored(self, score: Score) -> str:
        """The line of the output."""
        return f"{self.text[:-1]}, {json.dumps(vars(score))[1:]}"


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.verify") -> int:
    """Parse the command line and carry it out; return the exit status."""
    default = VerifierConfig()
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [name for name in VERIFIERS if name not in _NEED_A_RUN]
    parser.add_argument("--verifier", required=True, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--input", required=True, metavar="FILE", help="JSON lines; - for stdin")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; default: the cores")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=default.answer_timeout_s,
        help=f"longest time for one answer, default {default.answer_timeout_s:g}",
    )
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=default.memory_mib,
        help=f"how far a process may grow, default {default.memory_mib}",
    )
    parser.add_argument("--function", default="", metavar="MODULE:CALLABLE", help="of the verifier function")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Check the options, score all lines, write them."""
    _check(args, [name for name in VERIFIERS if name not in _NEED_A_RUN])
    with ExitStack() as stack:
        lines = stack.enter_context(_opened(args.input))
        if lines.seekable():  # nothing is written where a row is bad
            for _ in read_rows(lines, args.input, args.verifier):
                pass
            lines.seek(0)
        pool = stack.enter_context(_pool(args))
        pool.ready.result()
        try:
            for line in _scored_lines(pool, read_rows(lines, args.input, args.verifier), args.verifier):
                print(line)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads has seen enough; the interpreter must not try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _scored_lines(pool: VerifierPool, rows: Iterator[Row], verifier: str) -> Iterator[str]:
    rows, again = itertools.tee(rows)  # the pool reads some rows ahead
    scores = pool.scores((row.prompt(verifier), row.answer) for row in rows)
    return (row.scored(score) for score, row in zip(scores, again, strict=False))


def read_rows(lines: Iterable[str], name: str, verifier: str) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines; empty lines are passed over.

    Raises:
        ConfigError: a line is not a JSON object with an `answer` and a `gold`, or has aliases that `verifier` does not
            take; the message has file and line.
    """
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row = _row(line, number, f"{name}, line {number}")
                if row.aliases and verifier not in VERIFIERS_WITH_ALIASES:
                    raise ConfigError(f"{name}, line {number}: verifier {verifier} takes one gold and no aliases")
                yield row
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}, after line {number}: not UTF-8 text ({error.reason})") from None


def _row(line: str, number: int, where: str) -> Row:
    try:
        values = json.loads(line, parse_int=Number, parse_float=Number, parse_constant=Number)
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: must be an object with an answer and a gold, found {_kind(values)}")
        text = _to_json({key: value for key, value in values.items() if key not in Score.__dataclass_fields__})
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None
    for key in ("answer", "gold"):
        if key not in values:
            raise ConfigError(f"{where}: lacks the key {key!r}")
    if not isinstance(values["answer"], str):
        raise ConfigError(f"{where}: 'answer' must be a string, found {_kind(values['answer'])}")
    if not isinstance(values["gold"], str):
        raise ConfigError(f"{where}: 'gold' must be a string or a number, found {_kind(values['gold'])}")
    aliases = values.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ConfigError(f"{where}: 'aliases' must be a list of strings or numbers")
    return Row(number, str(values["answer"]), str(values["gold"]), tuple(map(str, aliases)), text)


def _to_json(value: object) -> str:
    """JSON of what was read, each number as it was written."""
    match value:
        case Number():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)}: {_to_json(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(_to_json(item) for item in value) + "]"
        case _:
            return json.dumps(value)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a boolean", Number: "a number", str: "a string"}
    return kinds.get(type(value), "null")


def _check(args: argparse.Namespace, names: Sequence[str]) -> None:
    if args.verifier not in names:
        raise ConfigError(f"--verifier must be one of {', '.join(names)}, got {args.verifier!r}")
    if args.workers < 1:
        raise ConfigError(f"--workers must be >= 1, got {args.workers}")
    if not (math.isfinite(args.timeout_s) and args.timeout_s > 0):
        raise ConfigError(f"--timeout-s must be > 0 and finite, got {args.timeout_s}")
    if args.memory_mib < 1:
        raise ConfigError(f"--memory-mib must be >= 1, got {args.memory_mib}")
    if bool(args.function) != (args.verifier == "function"):
        raise ConfigError("--function MODULE:CALLABLE belongs to --verifier function, and has to be given with it")


def _opened(name: str) -> TextIO:
    try:
        return open(sys.stdin.fileno() if name == "-" else name, encoding="utf-8", closefd=name != "-")
    except OSError as error:
        raise ConfigError(f"--input {name} cannot be read: {error.strerror}") from None


def _pool(args: argparse.Namespace) -> VerifierPool:
    tests = PythonTestsConfig(timeout_s=_SHARE_OF_TESTS * args.timeout_s)
    return VerifierPool(
        VerifierBuilder(args.function, python_tests=tests),
        (args.verifier,),
        num_workers=args.workers,
        answer_timeout_s=args.timeout_s,
        memory_mib=args.memory_mib,
    )


if __name__ == "__main__":
    sys.exit(main())
