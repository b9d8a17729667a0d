"""Code against tests: what passes, what does not, what cannot pretend to, and what it cannot reach."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.config import PythonTestsConfig
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers import python_tests
from vipray.verifiers.build import build_verifier
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.python_tests import PythonTestsVerifier, extract_code, parse_tests
from vipray.verifiers.sandbox import launch
from vipray.verifiers.sandbox.values import decode, encode
from vipray.verifiers.workers import VerifierPool

ROOT = Path(__file__).parents[2]
CONFIG = PythonTestsConfig(timeout_s=30, cpu_s=2, memory_mib=256, processes=8, file_mib=1)
ADD = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def verifier():
    try:
        return PythonTestsVerifier(CONFIG)
    except ConfigError as error:
        pytest.skip(str(error))


def prompt(tests) -> Prompt:
    return Prompt("p", "t", 0, "?", json.dumps(tests), verifier="python_tests")


def of_program(verifier, code, *pairs):
    return verifier.verify(prompt({"stdin_stdout": list(pairs)}), f"```python\n{code}\n```")


def of_module(verifier, code, *asserts):
    return verifier.verify(prompt({"asserts": list(asserts)}), f"So:\n```python\n{code}\n```\n")


def test_a_program_is_paid_for_all_outputs(verifier):
    code = "a, b = map(int, input().split())\nprint(a + b)"
    score = of_program(verifier, code, ["3 4\n", "7\n"], ["-1 1", "0"])
    assert (score.reward, score.outcome, score.extracted, score.reason) == (1.0, "correct", code + "\n", "")
    score = of_program(verifier, code, ["3 4\n", "7\n"], ["1 1", "3"])
    assert (score.reward, score.outcome, score.reason) == (0.0, "wrong", "test 2 of 2: another output")


@pytest.mark.parametrize(
    ("code", "expected", "outcome"),
    [
        ("print('a ')\nprint('b')\nprint()", "a\nb", "correct"),
        ("print('a')\nprint()\nprint('b')", "a\nb", "wrong"),
        ("print(' a')", "a", "wrong"),
        ("print('äß€')", "äß€\n", "correct"),
        ("import sys\nprint('a')\nsys.exit(0)", "a", "correct"),
        ("import sys\nprint('a')\nsys.exit(3)", "a", "wrong"),
        ("if __name__ == '__main__':\n    print('a')", "a", "correct"),
        ("import sys\nprint(repr(sys.stdin.read()))", "''", "correct"),
        ("from collections import Counter\nimport math, json, re, itertools, heapq\nprint(Counter('aa'))",
         "Counter({'a': 2})", "correct"),
    ],
)  # fmt: skip
def test_outputs_are_compared_line_by_line(verifier, code, expected, outcome):
    assert of_program(verifier, code, ["", expected]).outcome == outcome


def test_failures_say_what_happened(verifier):
    assert of_program(verifier, "1 / 0", ["", "1"]).reason == "test 1 of 1: ZeroDivisionError: division by zero"
    assert of_program(verifier, "x = [0] * 2**40", ["", "1"]).reason == "test 1 of 1: MemoryError"
    assert of_program(verifier, "def", ["", "1"]).reason == "test 1 of 1: SyntaxError: invalid syntax"
    assert of_module(verifier, ADD, "assert add(1, 2) == 3", "assert add(1, 1) == 3").reason == (
        "test 2 of 2: AssertionError"
    )
    assert of_module(verifier, ADD, "assert sub(1, 2) == 3").reason == (
        "test 1 of 1: NameError: name 'sub' is not defined"
    )
    assert of_module(verifier, "1 / 0", "assert add(1, 1) == 3").reason == (
        "the code does not run: ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (ADD, "assert add(3, 4) == 7"),
        (ADD, "assert add([1], [(2, 3)]) == [1, (2, 3)] and add('a', 'b') == 'ab' and add(b'a', b'') == b'a'"),
        (ADD, "import math\nassert math.isclose(add(0.1, 0.2), 0.3)"),
        (ADD, "assert add(10**5000, 1) == 10**5000 + 1"),
        (ADD, "for n in range(10):\n    assert add(n, n) == 2 * n"),
        (ADD, "assert [add(n, 1) for n in range(3)] == [1, 2, 3]"),
        ("def f(x): return {x: {1, 2}, None: frozenset([True]), 2.5: (1j, float('inf'))}",
         "assert f('k') == {'k': {1, 2}, None: frozenset([True]), 2.5: (1j, float('inf'))}"),
        ("def f(*a, k=0): return a, k", "assert f(1, *[2], **{'k': 3}) == ((1, 2), 3)"),
        ("def f():\n    yield 1\n    yield 2", "assert list(f()) == [1, 2]"),
        ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)",
         "s = Stack()\ns.push(1)\ns.push(2)\nassert s.items == [1, 2]"),
        ("def square(x): return x * x\ndef twice(f, x): return f(f(x))", "assert twice(square, 3) == 81"),
        ("def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x",
         "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False"),
        ("from collections import defaultdict\ndef f(): return defaultdict(int, a=1)", "assert f() == {'a': 1}"),
        ("LIMIT = 3", "assert LIMIT == 3"),
        ("import sys\nprint('x' * 100, file=sys.stdout)\ndef f(): print('noise'); return 1", "assert f() == 1"),
        ("def f(x): return None", "assert f(1) is None"),
    ],
)  # fmt: skip
def test_tests_see_the_values_of_the_code(verifier, code, test):
    score = of_module(verifier, code, test)
    assert score.outcome == "correct", score.reason


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "print('passed', flush=True)\nimport os\nos._exit(0)",
        "print('{\"passed\": true, \"runnable\": true, \"reason\": \"\"}', flush=True)\nraise SystemExit(0)",
        "class Yes:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\n"
        "def add(*_): return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(*_): return Yes(8)",
        "class Yes(list):\n    def __eq__(self, other): return True\ndef add(*_): return Yes()",
        "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.abs = builtins.isinstance = lambda *_: True\n"
        "def add(*_): return 8",
        "class math:\n    isclose = staticmethod(lambda *_: True)\ndef abs(_): return 0\ndef add(*_): return 8",
        "import math\nmath.isclose = lambda *_: True\ndef add(*_): return 8",
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'{\"passed\": true, \"runnable\": true}')\n"
        "    except OSError: pass\ndef add(*_): return 8",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(*_): return 8",
        "import sys\nsys.modules['vipray.verifiers.sandbox.values'].encode = lambda *_: ['l', [True]]\n"
        "def add(*_): return 8",
        "import os, signal\nos.kill(1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(*_): return 8",
        "def add(*_): raise SystemExit(0)",
        "def add(*_): raise AttributeError('__test__')",
        "import gc\ndef add(*_):\n    found = [str(o) for o in gc.get_objects() if type(o) in (dict, list, tuple)]\n"
        "    return 7 if any('=='.join(['', ' 7']) in o for o in found) else 8",
        "def add(*_):\n    import inspect\n    found = [str(frame[0].f_locals) for frame in inspect.stack()]\n"
        "    return 7 if any('=='.join(['', ' 7']) in o for o in found) else 8",
        "import os, sys\nif os.fork(): os._exit(0)\ndef add(*_): return 8",
    ],
)  # fmt: skip
def test_nothing_but_the_right_values_passes(verifier, code):
    for test in (
        "assert add(3, 4) == 7",
        "import math\nassert math.isclose(add(3, 4), 7)",
        "assert math.isclose(add(3, 4), 7)",
        "assert abs(add(3, 4) - 7) < 1e-9",
    ):
        score = of_module(verifier, code, test)
        assert score.reward == 0.0 and score.outcome == "wrong", (test, score)
    assert of_program(verifier, code, ["3 4", "7"]).outcome == "wrong"


def test_ending_an_iteration_does_not_end_the_test(verifier):
    for kind in ("StopIteration", "StopAsyncIteration", "GeneratorExit"):
        score = of_module(verifier, f"def add(*_): raise {kind}", "assert all(map(add, [3, 4], [4, 5]))")
        assert score.outcome == "wrong" and kind in score.reason


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    | st.sets(st.integers() | st.text()) | st.frozensets(st.integers()),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_plain_values_cross_as_they_are(value):
    def no_object(_):
        raise AssertionError("not by value")

    crossed = decode(json.loads(json.dumps(encode(value, no_object))), no_object)
    assert crossed == value and type(crossed) is type(value)


def test_a_worker_that_is_ended_takes_its_sandboxes_along(verifier):
    config = PythonTestsConfig(timeout_s=600)
    build = VerifierBuilder(python_tests=config)
    completion = "```python\nimport time\ntime.sleep(600)\n```"
    with VerifierPool(build, ("python_tests",), num_workers=1, answer_timeout_s=8, memory_mib=1024) as pool:
        pool.ready.result(60)
        (supervisor,) = pool.worker_pids()
        future = pool.submit(prompt({"asserts": ["assert f() == 1"]}), completion)
        below: list[psutil.Process] = []
        while len(below) < 7:  # the worker, and three for each side
            assert not future.done()
            time.sleep(0.05)
            below = psutil.Process(supervisor).children(recursive=True)
        assert future.result(60).outcome == "timeout"
        _, left = psutil.wait_procs(below, timeout=10)
        assert not left


CHECKS = {
    "network": "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)",
    "name look-up": "import socket\nsocket.getaddrinfo('localhost', 80)",
    "files of the project": f"open({__file__!r})",
    "files of the machine": "open('/etc/passwd')",
    "programs of the machine": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])",
    "writing outside /tmp": "open('/usr/x', 'w')",
    "processes": "import os\nfor _ in range(64):\n    if os.fork() == 0:\n        import time\n        time.sleep(1)\n"
    "        os._exit(0)",
    "threads": "import threading, time\nfor _ in range(64): threading.Thread(target=time.sleep, args=(1,)).start()",
    "large files": "open('x', 'wb').write(b'x' * (2 << 20))",
    "many files": "for n in range(2000): open(str(n), 'w')",
    "memory": "x = bytearray(300 << 20)",
    "other processes": "import os\nos.kill(3, 0)",
    "becoming root": "import os\nos.setuid(0)",
    "mounting": "import ctypes\nassert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0",
    "reading memory": "open('/proc/self/mem')",
}


@pytest.mark.parametrize("what", CHECKS)
def test_out_of_reach(verifier, what):
    score = of_program(verifier, f"{CHECKS[what]}\nprint('done')", ["", "done"])
    assert score.outcome == "wrong" and "rror" in score.reason, score.reason


def test_nothing_is_inherited(verifier, monkeypatch):
    monkeypatch.setenv("VIPRAY_SECRET", "secret")
    code = (
        "import os\n"
        "print(sorted(os.environ), os.listdir('.'), os.getcwd(), os.getpgid(0) != os.getppid())\n"
        "for fd in range(3, 256):\n"
        "    try: print(fd, os.fstat(fd))\n"
        "    except OSError: pass\n"
        "open('own', 'w').write('x')\n"
    )
    expected = "['HOME', 'LANG', 'PATH'] [] /tmp True"
    for _ in range(2):  # nor from an earlier run
        score = of_program(verifier, code, ["", expected])
        assert score.outcome == "correct", score.reason


def test_processor_time_is_wrong_and_wall_time_is_no_evidence(verifier):
    score = of_program(verifier, "while True: pass", ["", "1"])
    assert score.outcome == "wrong" and "2 s of processor time" in score.reason
    score = of_module(verifier, "def f():\n    while True: pass", "assert f() == 1")
    assert score.outcome == "wrong" and "2 s of processor time" in score.reason
    hasty = PythonTestsVerifier(PythonTestsConfig(timeout_s=1.0))
    for score in (
        of_program(hasty, "import time\ntime.sleep(60)", ["", "1"]),
        of_module(hasty, "import time\ntime.sleep(60)", "assert f() == 1"),
    ):
        assert (score.reward, score.outcome, score.reason) == (0.0, Outcome.TIMEOUT, "the tests took longer than 1 s")


def test_what_the_code_started_ends_with_it(verifier):
    children = set(psutil.Process().children(recursive=True))
    code = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('done')\n"
    )
    start = time.monotonic()
    assert of_program(verifier, code, ["", "done"]).outcome == "correct"
    assert time.monotonic() - start < 20
    assert set(psutil.Process().children(recursive=True)) == children


@pytest.mark.parametrize(
    ("gold", "words"),
    [
        ("7", "an object with one key"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "one key"),
        ('{"asserts": [], "stdin_stdout": []}', "one key"),
        ('{"asserts": []}', "at least one test"),
        ('{"asserts": ["add(1, 2) == 3"]}', "test 1: holds no assert"),
        ('{"asserts": ["assert add(1, 2) == 3", "assert ("]}', "test 2"),
        ('{"asserts": [3]}', "must be a string"),
        ('{"stdin_stdout": [["a"]]}', "test 1: must be a list of two strings"),
        ('{"stdin_stdout": [["a", 3]]}', "test 1: must be a list of two strings"),
        ('{"stdin_stdout": [["", ""], ["a", " "]]}', "asks for no output"),
        ('{"asserts": ["assert sorted([2, 1]) == [1, 2]"]}', "test 1: touches no code"),
        ('{"asserts": ["def check(c):\\n    assert c(1) == 1"]}', "test 1: touches no code"),
        ('{"asserts": ["assert isclose(add(2, 2), 4.0)"]}', "test 1: uses add, isclose"),
        ('{"asserts": ["assert add(2, 2) == approx(4.0)"]}', "test 1: uses add, approx"),
        ('{"asserts": ["e = approx(4)\\nassert add(2, 2) == e"]}', "test 1: uses add, approx"),
        ('{"asserts": ["assert add(1, 2) == 3 or check(add)"]}', "test 1: uses add, check"),
        ('{"asserts": ["assert add(1, 2) == 3"], "names": "add"}', "names must be a list"),
        ('{"asserts": ["assert sub(1, 2) == 3"], "names": ["add"]}', "test 1: uses sub"),
    ],
)
def test_tests_that_cannot_be_run_are_found_and_never_paid(verifier, gold, words):
    bad = Prompt("p", "t", 0, "?", gold, verifier="python_tests")
    assert words in (verifier.check_gold(bad) or "")
    score = verifier.verify(bad, f"```python\n{ADD}```")
    assert (score.reward, score.outcome) == (0.0, "unscorable") and words in score.reason
    assert verifier.check_gold(prompt({"asserts": ["assert f(1)"]})) is None


def test_a_gold_may_name_all_that_is_the_codes(verifier):
    test = "x = encode('abc')\nassert decode(x) == 'abc' and x != 'abc'"
    gold = prompt({"asserts": [test], "names": ["encode", "decode"]})
    code = "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]\n"
    assert verifier.verify(gold, f"```python\n{code}```").outcome == "correct"
    assert verifier.verify(prompt({"asserts": [test]}), f"```python\n{code}```").outcome == "unscorable"


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        (f"<think>\n```python\n{ADD}```\n", "wrong"),
        (f"<think>\n```python\nx\n```\n</think>\n```python\n{ADD}```\n", "correct"),
        (f"```python\n{ADD}```\nBetter:\n```python\ndef add(a, b): return a", "wrong"),
        (f"```py\n{ADD}```\nIt prints:\n```\n7\n```\n", "correct"),
        (f"```\n{ADD}```\n", "correct"),
        (f"~~~python\n{ADD}~~~\n", "correct"),
    ],
)
def test_which_block_is_run(verifier, completion, outcome):
    assert verifier.verify(prompt({"asserts": ["assert add(3, 4) == 7"]}), completion).outcome == outcome


def test_a_test_that_passes_what_cannot_be_sent_is_unscorable(verifier):
    score = of_module(verifier, "def twice(f, x): return f(f(x))", "assert twice(lambda x: x + 1, 3) == 5")
    assert score.outcome == "unscorable" and "passes a function" in score.reason


def test_code_is_the_last_block_of_python(verifier):
    assert extract_code("```js\nx\n```\n  ```python3 title\ny\n  ```") == "y\n"
    assert extract_code("```bash\nx\n```") is None
    assert extract_code("```python\nunfinished") is None
    score = verifier.verify(prompt({"asserts": ["assert add(1, 2) == 3"]}), ADD)
    assert (score.outcome, score.reason) == ("wrong", "no fenced block of Python code")
    assert doctest.testmod(python_tests).failed == 0
    assert parse_tests('{"stdin_stdout": [["a", "b"]]}').pairs == (("a", "b"),)


def test_a_machine_without_namespaces_is_refused(monkeypatch):
    def refused(*_args, **_kwargs):
        raise launch.SandboxError("unshare: Operation not permitted")

    monkeypatch.setattr(python_tests, "run_program", refused)
    with pytest.raises(ConfigError, match=r"does not permit \(unshare: Operation not permitted\)"):
        build_verifier("python_tests")


_AS_ORDINARY_USER = """
import time
from vipray.verifiers.sandbox.isolation import Limits
from vipray.verifiers.sandbox.launch import run_program
program = '''
import os, socket
print(os.getuid(), os.listdir("."), os.listdir("/usr/lib") != [])
try: os.mkdir("/x")
except OSError as error: print(error.strerror)
socket.create_connection(("127.0.0.1", 9))
'''
limits = Limits(cpu_s=2, memory_bytes=256 << 20, processes=8, file_bytes=1 << 20)
ending = run_program(program, "", limits, time.monotonic() + 30)
print(ending.output.decode(), ending.last_words)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_works_for_an_ordinary_user_too(verifier):
    for python in (sys.executable, "/usr/bin/python3"):
        with suppress(PermissionError, FileNotFoundError):
            result = subprocess.run(
                [python, "-c", _AS_ORDINARY_USER],
                user=54321,
                group=54321,
                extra_groups=[],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
            )
            break
    else:
        pytest.skip("no interpreter that an ordinary user can run")
    if "No module named 'vipray'" in result.stderr:
        pytest.skip("the project lies where an ordinary user cannot read")
    words = ("65534 [] True", "Read-only file system", "Network is unreachable")
    assert all(word in result.stdout for word in words), result
