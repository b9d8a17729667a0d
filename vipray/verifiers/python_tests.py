r"""Runs the code of a completion against tests, in a sandbox: the verifier `python_tests`.

The gold is JSON with one of two keys:

    {"stdin_stdout": [["3 4\n", "7\n"], …]}     the code is a program; each input has to give its output
    {"asserts": ["assert add(3, 4) == 7", …]}    the code is a module; each test has to run through

A test with `assert` uses the names of the code. Where it uses more than one name that neither it, the builtins nor the
standard library's modules define, the code could supply what it is compared with, as in `assert isclose(f(2), 4.0)`.
Such a test must be nothing but comparisons of a value of the code with one that the code has no part in, or the gold
must say which names are the code's: `{"asserts": […], "names": ["encode", "decode"]}`. Tests that touch no code, and
programs of which no output is asked, are refused: anything would pass them.

Outputs are compared line by line, without white space at the ends of lines and without empty lines at the end; a
program must also end with status 0. Tests with `assert` run in another process than the code, and see of it what
crosses as values of builtin types (see `sandbox/judge.py`); a name that they share with a builtin is the builtin.
Arguments go to the code as copies. The code is never shown what is expected of it, and nothing that it prints, writes
or exits with is taken for a verdict.

The code is what the last fenced block of the completion holds that is marked `python` or `py`; without such a block,
the last one that is not marked at all. Blocks in thinking do not count, and where the last block was cut there is no
code. It has the standard library alone. Code that uses up its processor time is wrong; where the wall clock runs
out before that, the machine may have been busy, and the outcome is `timeout`.
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
from vipray.verifiers.sandbox.names import compares_with_own_values, names_of_code

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w.]*)(.*)$")
_PYTHON = re.compile(r"(?:python|py)[\d.]*", re.IGNORECASE)
_HAS_THOUGHT = re.compile(r"</(?:think|thinking|thoughts?|reasoning)>|<\|end_of_thought\|>", re.IGNORECASE)
_THINKS = re.compile(r"<(?:think|thinking|thoughts?|reasoning)>|<\|begin_of_thought\|>", re.IGNORECASE)
_MIN_ECHO = 20  # characters of a prompt that is recognised
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
        code = extract_code(_without_thinking(prompt.text, completion))
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


def _without_thinking(prompt_text: str, completion: str) -> str:
    """What follows an echo of the prompt and thinking; thinking that never ends is followed by nothing.

    Not `answer_text.own_words`, which would cut off code at a comment such as `# Question:`.
    """
    question = prompt_text.strip()
    text = completion.rpartition(question)[2] if len(question) >= _MIN_ECHO else completion
    return _THINKS.split(_HAS_THOUGHT.split(text)[-1], maxsplit=1)[0]


def extract_code(completion: str) -> str | None:
    r"""Return the last fenced block of Python, or None where there is none or the last one is cut.

    >>> extract_code("First:\n```python\nx = 1\n```\nThen:\n```py\nx = 2\n```\nIt prints:\n```\n2\n```\n")
    'x = 2\n'
    >>> extract_code("x = 1") is None, extract_code("```\nx = 1\n```\nBetter:\n```python\nx =") is None
    (True, True)
    """
    blocks: dict[bool, str] = {}  # the last one that is marked, and the last one that is not
    fence, language, lines = "", "", list[str]()
    for line in completion.splitlines(keepends=True):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, lines = match[1], match[2], []
        elif match and match[1].startswith(fence) and not match[2] and not match[3].strip():
            if not language or _PYTHON.fullmatch(language):
                blocks[bool(language)] = "".join(lines)
            fence = ""
        elif fence:
            lines.append(line)
    is_cut = fence and (not language or _PYTHON.fullmatch(language))
    return None if is_cut else blocks.get(True, blocks.get(False))


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
    names = found.pop("names", None) if isinstance(found, dict) and "asserts" in found else None
    if not isinstance(found, dict) or len(found) != 1 or not found.keys() <= {"stdin_stdout", "asserts"}:
        raise ValueError("the tests must be an object with one key, stdin_stdout or asserts")
    if names is not None and not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise ValueError("names must be a list of the names of the code under test")
    ((kind, items),) = found.items()
    if not isinstance(items, list) or not items:
        raise ValueError(f"{kind} must be a list with at least one test")
    return Tests(pairs=_pairs(items)) if kind == "stdin_stdout" else Tests(asserts=_asserts(items, names))


def _pairs(items: list[object]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(text, str) for text in item):
            raise ValueError(f"stdin_stdout, test {number}: must be a list of two strings, input and output")
        pairs.append((item[0], item[1]))
    if not any(output.strip() for _, output in pairs):
        raise ValueError("stdin_stdout asks for no output, so it cannot fail")
    return tuple(pairs)


def _asserts(items: list[object], names: list[str] | None) -> tuple[str, ...]:
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
        _check_names(f"asserts, test {number}", item, names)
        tests.append(item)
    return tuple(tests)


def _check_names(where: str, test: str, allowed: list[str] | None) -> None:
    """Refuse a test that touches no code, or in which the code could supply what it is compared with."""
    used = names_of_code(test)
    if not used:
        raise ValueError(f"{where}: touches no code, only builtins and what it defines itself")
    is_clear = len(used) == 1 or compares_with_own_values(test) if allowed is None else used <= set(allowed)
    if not is_clear:
        raise ValueError(
            f"{where}: uses {', '.join(sorted(used))}, which it does not define: import or define what is not the "
            'code\'s, or name all that is, such as "names": ["encode", "decode"]'
        )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
