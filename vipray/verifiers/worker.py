"""The pool's side of one worker: start its processes, send it answers, read its scores against the clock, end it."""

from __future__ import annotations

import base64
import json
import os
import pickle
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.protocol import Score, Verifier
from vipray.verifiers.worker_process import EXIT_BY_SIGNAL

_ROUNDS = 10  # of killing what goes on starting processes
_END_S = 5.0  # for a supervisor to end what is below it
_SEND_S = 30.0  # an idle worker reads a batch at once
_LONGEST_REPLY = 64 << 20  # bytes
_NO_REPLY = "its process sent something that is no score"
MARK = "VIPRAY_WORKER"  # variable by which everything that a worker has started is known
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class DeadlineError(Exception):
    """A reply did not come in time."""


class WorkerEndedError(Exception):
    """A worker ended, or sent what is no reply; the message says how."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is made of.

    Attributes:
        build: picklable; makes a verifier from its name, in the worker.
        names: the verifiers that are built before the first answer comes.
        memory_bytes: how far the worker may grow beyond its size with these verifiers; so may each of its children.
    """

    build: Callable[[str], Verifier]
    names: tuple[str, ...]
    memory_bytes: int

    def as_json(self) -> dict[str, Any]:
        """For the socket."""
        build = base64.b64encode(pickle.dumps(self.build)).decode()
        return {"build": build, "names": self.names, "memory_bytes": self.memory_bytes}


class Worker:
    """A running worker, in a session of its own. One thread uses it; any thread may `end` it.

    The interpreter is a fresh one: forking a process that has threads copies locks that nobody will release, and the
    standard library's spawning would import the caller's main module again.

    Raises:
        OSError: the machine has no room for another process.
        WorkerEndedError: it ended before it was told what to build.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._socket, theirs = socket.socketpair()
        their_lifeline, lifeline = os.pipe()
        self._lifeline = open(lifeline, "wb", buffering=0)  # noqa: SIM115 - open as long as the worker is wanted
        self._buffer = b""
        self.is_ready = False
        self.has_retired = False  # it has sent its last score by its own choice
        self._owed: deque[str] = deque()  # tokens of the answers that it has not scored yet
        self._mark = secrets.token_hex(16)
        descriptors = (theirs.fileno(), their_lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vipray.verifiers.worker_process", *map(str, descriptors)],
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path), MARK: self._mark},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError:
            self._lifeline.close()
            self._socket.close()
            raise
        finally:
            theirs.close()
            os.close(their_lifeline)
        try:
            self._send(spec.as_json())
        except WorkerEndedError:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which leads the worker's process group."""
        return self._process.pid

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when the verifiers are built.

        Raises:
            ConfigError: one cannot be built.
            DeadlineError: it took too long.
            WorkerEndedError: the worker ended.
        """
        reply = self._receive(timeout_s)
        if "refused" in reply:
            raise ConfigError(reply["refused"])
        self.is_ready = True

    def send(self, batch: Sequence[tuple[Prompt, str]]) -> None:
        """Hand over prompts and completions; `score` then has to be called for each."""
        tokens = [secrets.token_hex(8) for _ in batch]
        self._owed.extend(tokens)
        self._send(
            [[token, vars(prompt), completion] for token, (prompt, completion) in zip(tokens, batch, strict=True)]
        )

    def score(self, timeout_s: float) -> Score:
        """Return the score of the next answer.

        Raises:
            DeadlineError: it took longer than `timeout_s` from this call.
            WorkerEndedError: the worker ended before it, or sent what does not bear the answer's token: something
                else than its loop has written to the socket.
        """
        reply = self._receive(timeout_s)
        wanted = self._owed.popleft()
        try:
            token, reward, outcome, extracted, reason, self.has_retired = reply
            if token != wanted:
                raise ValueError
            return Score(reward, Outcome(outcome), extracted, reason)
        except (TypeError, ValueError):
            raise WorkerEndedError(_NO_REPLY) from None

    def has_ended(self) -> bool:
        """Whether a worker that owes no score, or has retired, is of no more use."""
        if self.has_retired:
            return True
        readable, _, _ = select.select([self._socket], [], [], 0)
        return bool(readable)

    def hang_up(self) -> None:
        """Have the supervisor end the worker and everything below it."""
        self._lifeline.close()

    def end(self) -> int:
        """End the worker with everything below it, and return its exit status."""
        self.hang_up()
        self._socket.close()
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            status = self._process.wait(_END_S)
        if status < 0:  # the supervisor was killed itself, so that it could not end what is below it
            _end_marked(self._mark)
        return status

    def _send(self, message: object) -> None:
        self._socket.settimeout(_SEND_S)
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._ended() from None

    def _receive(self, timeout_s: float) -> Any:
        """The next line, decoded. What lies in the socket already is in time, however late this thread is."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                chunk = self._socket.recv(1 << 16)
            except TimeoutError:
                raise DeadlineError from None
            except OSError:
                chunk = b""
            if not chunk or len(self._buffer) > _LONGEST_REPLY:
                raise self._ended()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise WorkerEndedError(_NO_REPLY) from None

    def _ended(self) -> WorkerEndedError:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return WorkerEndedError("its process closed the connection")
        if status > EXIT_BY_SIGNAL:
            name = signal.Signals(status - EXIT_BY_SIGNAL).name
            return WorkerEndedError(f"its process was ended by {name}")
        return WorkerEndedError(f"its process ended with status {status}")


def _end_marked(mark: str) -> None:
    """Kill what a supervisor has left behind, in whatever session: what has its mark in the environment."""
    for _ in range(_ROUNDS):
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    process.kill()
                    found = True
        if not found:
            return
