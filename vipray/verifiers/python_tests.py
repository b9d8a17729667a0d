r"""Runs the code of a completion against tests, in a sandbox: the verifier `python_tests`.

The gold is JSON with one of two keys:

    {"stdin_stdout": [["3 4\n", "7\n"], …]}     the code is a program; each input has to give its output
    {"asserts": ["assert add(3, 4) == 7", …]}    the code is a module; each test has to run through

Outputs are compared line by line, without white space at the ends of lines and without empty lines at the end; a
program must also end with status 0. Tests with `assert` run in another process than the code, and see of it what
crosses as values of builtin types (see `sandbox/judge.py`); a name that they share with a builtin is the builtin.
Arguments go to the code as copies. The code is never shown what is expected of it, and nothing that it prints, writes
or exits with is taken for a verdict.

The code is what the last fenced block of the completion holds, of those that are marked `python`, `py` or not at all.
It has the standard library alone. Code that uses up its processor time is wrong; where the wall clock runs out before
that, the machine may have been busy, and the outcome is `timeout`.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from vipray.config import PythonTestsConfig
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.protocol import Score
from vipray.verifiers.sandbox.isolation import Limits
from vipray.verifiers.sandbox.launch import (
    EXIT_OUT_OF_TIME,
    Ending,
    OutOfTimeError,
    SandboxError,
    run_program,
    run_tests,
)

_BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_LANGUAGES = ("", "python", "py", "python3")
_PROBE_S = 30.0


@dataclass(frozen=True)
class Tests:
    """A gold: either pairs of input and output, or tests with `assert`."""

    __test__ = False  # pytest would take the class for one of its own

    pairs: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()


class PythonTestsVerifier:
    """Pays code that passes all tests of its prompt.

    Raises:
        ConfigError: this machine does not permit the sandbox.
    """

    def __init__(self, config: PythonTestsConfig) -> None:
        self._config = config
        self._limits = Limits(
            cpu_s=config.cpu_s,
            memory_bytes=config.memory_mib << 20,
            processes=config.processes,
            file_bytes=config.file_mib << 20,
        )
        try:
            run_program("", "", self._limits, time.monotonic() + _PROBE_S)
        except (SandboxError, OutOfTimeError) as error:
            raise ConfigError(
                "verifier python_tests runs code in Linux namespaces, which this machine does not permit "
                f"({error or 'no answer'}): allow user namespaces, or run on a machine that does"
            ) from None

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 when all tests pass, else 0."""
        try:
            tests = parse_tests(prompt.answer)
        except ValueError as error:
            return Score.unscorable(str(error))
        code = extract_code(completion)
        if code is None:
            return Score.wrong("", "no fenced block of Python code")
        deadline = time.monotonic() + self._config.timeout_s
        try:
            if tests.pairs:
                return self._run_pairs(code, tests.pairs, deadline)
            return self._run_asserts(code, tests.asserts, deadline)
        except OutOfTimeError:
            reason = f"the tests took longer than {self._config.timeout_s:g} s"
            return Score(0.0, Outcome.TIMEOUT, code, reason)
        except SandboxError as error:
            return Score.error(f"the sandbox did not start: {error}")

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None for tests that can be run, else what is wrong with them."""
        try:
            parse_tests(prompt.answer)
        except ValueError as error:
            return str(error)
        return None

    def _run_pairs(self, code: str, pairs: Sequence[tuple[str, str]], deadline: float) -> Score:
        for number, (given, expected) in enumerate(pairs, start=1):
            ending = run_program(code, given, self._limits, deadline)
            where = f"test {number} of {len(pairs)}"
            if ending.status:
                return Score.wrong(code, f"{where}: {self._how_it_ended(ending)}")
            if _lines(ending.output.decode(errors="replace")) != _lines(expected):
                return Score.wrong(code, f"{where}: another output")
        return Score.correct(code)

    def _run_asserts(self, code: str, asserts: Sequence[str], deadline: float) -> Score:
        judge, subject = run_tests(code, asserts, self._limits, deadline)
        try:
            verdict = json.loads(judge.output)
        except ValueError:
            return Score.error(f"the tests ended without a verdict: {self._how_it_ended(judge)}")
        if verdict["passed"]:
            return Score.correct(code)
        if not verdict["runnable"]:
            return Score.unscorable(verdict["reason"])
        if subject is not None and subject.status:
            return Score.wrong(code, f"{verdict['reason']}: {self._how_it_ended(subject)}")
        return Score.wrong(code, verdict["reason"])

    def _how_it_ended(self, ending: Ending) -> str:
        if ending.status in EXIT_OUT_OF_TIME:
            return f"ended by force, as after {self._config.cpu_s} s of processor time"
        return ending.last_words or f"ended with status {ending.status}"


def extract_code(completion: str) -> str | None:
    r"""Return the last fenced block of Python, or None.

    >>> extract_code("First:\n```python\nx = 1\n```\nThen:\n```\nx = 2\n```\n")
    'x = 2\n'
    >>> extract_code("x = 1") is None
    True
    """
    blocks = [code for language, code in _BLOCK.findall(completion) if language.lower() in _LANGUAGES]
    return blocks[-1] if blocks else None


@lru_cache(maxsize=1024)
def parse_tests(gold: str) -> Tests:
    """Read a gold.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        found = json.loads(gold)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tests are not JSON: {error}") from None
    if not isinstance(found, dict) or len(found) != 1 or not found.keys() <= {"stdin_stdout", "asserts"}:
        raise ValueError("the tests must be an object with one key, stdin_stdout or asserts")
    ((kind, items),) = found.items()
    if not isinstance(items, list) or not items:
        raise ValueError(f"{kind} must be a list with at least one test")
    return Tests(pairs=_pairs(items)) if kind == "stdin_stdout" else Tests(asserts=_asserts(items))


def _pairs(items: list[object]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(text, str) for text in item):
            raise ValueError(f"stdin_stdout, test {number}: must be a list of two strings, input and output")
        pairs.append((item[0], item[1]))
    return tuple(pairs)


def _asserts(items: list[object]) -> tuple[str, ...]:
    tests = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, str):
            raise ValueError(f"asserts, test {number}: must be a string of Python")
        try:
            tree = ast.parse(item)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ValueError(f"asserts, test {number}: {error}") from None
        if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
            raise ValueError(f"asserts, test {number}: holds no assert, so it cannot fail")
        tests.append(item)
    return tuple(tests)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
