"""What a worker does: build its verifiers, then score one answer after the other until the socket closes.

Lines of JSON go both ways. First comes a line with what to build; the reply is `{}`, or `{"refused": …}` where a
verifier cannot be built. Then come lines with a batch, `[[token, fields of the prompt, completion], …]`, and each
answer is replied to with a line of its own as soon as it is scored: `[token, reward, outcome, extracted, reason,
is_last]`. The token is the answer's, so that nothing else in the socket is taken for its score. Only numbers
and strings go back, never an object of a verifier. After a reply with `is_last` the worker ends by its own choice.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
from functools import cache
from typing import Any

from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.limits import limit_growth, resident_bytes
from vipray.verifiers.protocol import Score, Verifier

_LONGEST_REASON = 500  # characters
_KEPT_SHARE = 0.5  # of the memory limit: a worker that holds more after an answer makes room for a fresh one


def serve(socket_fd: int) -> int:
    """Answer everything that comes over the socket; return the exit status of the process."""
    connection = socket.socket(fileno=socket_fd)
    lines = connection.makefile("rb")
    task = json.loads(lines.readline())
    build = cache(pickle.loads(base64.b64decode(task["build"])))
    try:
        for name in task["names"]:
            build(name)
    except ConfigError as error:
        _send(connection, {"refused": str(error)})
        return 0
    limit_growth(task["memory_bytes"])
    most_kept = resident_bytes() + _KEPT_SHARE * task["memory_bytes"]
    _send(connection, {})
    for line in lines:
        for token, fields, completion in json.loads(line):
            prompt = Prompt(**fields | {"aliases": tuple(fields["aliases"])})
            score, is_last = _score(build, prompt, completion)
            is_last = is_last or resident_bytes() > most_kept
            _send(connection, [token, score.reward, score.outcome, score.extracted, score.reason, is_last])
            if is_last:
                return 0
    return 0


def _score(build: Any, prompt: Prompt, completion: str) -> tuple[Score, bool]:
    """The verifier's score in plain values, and whether this process should do no more after it."""
    process = os.getpid()
    try:
        verifier: Verifier = build(prompt.verifier)
        score = verifier.verify(prompt, completion)
        plain = Score(float(score.reward), Outcome(score.outcome), str(score.extracted), str(score.reason))
        if not 0.0 <= plain.reward <= 1.0:
            raise ValueError(f"a reward of {plain.reward}, outside of [0, 1]")
        is_last = False
    except BaseException as error:  # noqa: BLE001 - foreign code, sys.exit() included: its fault is an outcome
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON].removesuffix(": ")
        plain, is_last = Score.error(reason), isinstance(error, MemoryError)
    if os.getpid() != process:
        os._exit(0)  # a verifier forked, and the copy came back from it as well
    return plain, is_last


def _send(connection: socket.socket, reply: object) -> None:
    connection.sendall(json.dumps(reply).encode() + b"\n")
