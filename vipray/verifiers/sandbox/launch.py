"""The trusted side of the sandbox: starts sandboxed interpreters and waits for them, against the clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from vipray.verifiers.sandbox.entry import ENTERED
from vipray.verifiers.sandbox.isolation import Limits
from vipray.verifiers.sandbox.values import as_bytes

_ENTRY = Path(__file__).with_name("entry.py")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
_END_S = 5.0
_LONGEST_ERROR = 4096  # bytes of stderr that are looked at
EXIT_OUT_OF_TIME = (128 + signal.SIGXCPU, 128 + signal.SIGKILL)


class SandboxError(Exception):
    """The sandbox did not come up; the message says why."""


class OutOfTimeError(Exception):
    """The deadline passed."""


@dataclass(frozen=True)
class Ending:
    """How a sandboxed process ended: its status (128 plus a signal's number), its output, and its last words."""

    status: int
    output: bytes
    last_words: str


class Sandboxed:
    """One sandboxed interpreter. It writes to files, which the limit on files bounds; a pipe would need a reader.

    Args:
        task: for `entry.py`.
        limits: for the processes inside.
        stdin: what follows the task.
        channel: a socket that it inherits.
    """

    def __init__(
        self, task: dict[str, Any], limits: Limits, *, stdin: bytes = b"", channel: socket.socket | None = None
    ) -> None:
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes both
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        descriptors = [] if channel is None else [channel.fileno()]
        with tempfile.TemporaryFile() as content:
            content.write(as_bytes(task | {"limits": asdict(limits)}) + stdin)
            content.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_ENTRY), *map(str, descriptors)],
                stdin=content,
                stdout=self._stdout,
                stderr=self._stderr,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=descriptors,
                start_new_session=True,
            )

    def wait(self, deadline: float) -> Ending:
        """Return how it ended.

        Raises:
            OutOfTimeError: it did not, until `deadline` of the monotonic clock.
            SandboxError: the sandbox did not come up.
        """
        try:
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        errors = _content(self._stderr, _LONGEST_ERROR)
        if not errors.startswith(ENTERED):
            raise SandboxError(errors.decode(errors="replace").strip() or f"it ended with status {status}")
        lines = errors.decode(errors="replace").strip().splitlines()
        return Ending(status, _content(self._stdout), lines[-1] if len(lines) > 1 else "")

    def end(self) -> None:
        """End it with everything in it: without its first process, a process namespace is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_S)
        self._stdout.close()
        self._stderr.close()


def run_program(code: str, stdin: str, limits: Limits, deadline: float) -> Ending:
    """Run a program on an input, sandboxed; raises what `Sandboxed.wait` raises."""
    with _started({"role": "program", "code": code}, limits, stdin=stdin.encode("utf-8", "replace")) as program:
        return program.wait(deadline)


def run_tests(code: str, tests: Sequence[str], limits: Limits, deadline: float) -> tuple[Ending, Ending | None]:
    """Run tests on code, each side sandboxed on its own; raises what `Sandboxed.wait` raises.

    Returns:
        How the tests ended, with `judge.py`'s verdict as the output; and how the code ended, where it did.
    """
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
        subject = stack.enter_context(_started({"role": "subject", "code": code}, limits, channel=theirs))
        judge = stack.enter_context(_started({"role": "judge", "tests": list(tests)}, limits, channel=ours))
        ours.close()
        theirs.close()
        verdict = judge.wait(deadline)
        try:
            return verdict, subject.wait(time.monotonic() + _END_S)
        except OutOfTimeError:
            return verdict, None


@contextmanager
def _started(task: dict[str, Any], limits: Limits, **options: Any) -> Iterator[Sandboxed]:
    sandboxed = Sandboxed(task, limits, **options)
    try:
        yield sandboxed
    finally:
        sandboxed.end()


def _content(file: IO[bytes], size: int = -1) -> bytes:
    file.seek(0)
    return file.read(size)
