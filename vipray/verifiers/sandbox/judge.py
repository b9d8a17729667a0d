"""The tests: run here, in another process than the code that they test, so that it cannot touch them.

A name that a test uses and does not define stands for what the code has under it. Builtin values come by value, so
comparing them is done here, by the true operators; anything else is a `Remote`, which can be called, iterated, and
asked for attributes, and which compares with nothing. The code is never shown what is expected of it.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from vipray.verifiers.sandbox.names import names_of_code, standard_modules
from vipray.verifiers.sandbox.values import UnsendableError, as_bytes, decode, encode, receive

_LONGEST_REASON = 300
# The first two would end an iteration of the test as if it were done; the others cannot be made from a text.
_KEPT_OUT = (StopIteration, StopAsyncIteration, UnicodeError, BaseExceptionGroup)


class Remote:
    """An object of the code under test."""

    def __init__(self, code: Code, number: int) -> None:
        self._code, self._number = code, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Have the code call it; raises what it raises, as far as that is a builtin exception."""
        sent = {"arguments": self._code.plain(arguments), "named": self._code.plain(named)}
        return self._code.ask({"do": "call", "of": self._number, **sent})

    def __getattr__(self, name: str) -> Any:
        return self._code.ask({"do": "attribute", "of": self._number, "name": name})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._code.ask({"do": "list", "of": self._number}))

    def _refuse(self, *_: object) -> Any:
        raise TypeError("the code gave an object where a value of a builtin type was expected")

    __eq__ = __ne__ = __bool__ = __str__ = __repr__ = __format__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Code:
    """The code under test, at the other end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def result(self) -> Any:
        """Return the next value that the code's process sends, or raise its exception."""
        reply = receive(self._connection)
        if reply is None:
            raise RuntimeError("the code ended its process")
        if "value" in reply:
            return decode(reply["value"], lambda number: Remote(self, int(number)))
        kind, text = str(reply["error"]), str(reply["text"])
        known = getattr(builtins, kind, None)
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _KEPT_OUT):
            raise known(text)
        raise RuntimeError(f"{kind}: {text}")

    def ask(self, request: dict[str, Any]) -> Any:
        """Have the code's process do something."""
        self._connection.sendall(as_bytes(request))
        return self.result()

    def plain(self, value: Any) -> Any:
        """The form in which an argument is sent."""
        return encode(value, self._number_of)

    def _number_of(self, value: Any) -> int:
        if isinstance(value, Remote) and value._code is self:
            return value._number
        raise UnsendableError(f"a test passes a {type(value).__name__}, which cannot be sent to the code")

    def names(self, tests: Sequence[str]) -> dict[str, Any]:
        """What the code has under the names that the tests use; modules of the standard library are the true ones."""
        modules = {name for test in tests for name in standard_modules(test)}
        used = {name for test in tests for name in names_of_code(test)}
        found: dict[str, Any] = {name: importlib.import_module(name) for name in modules}
        for name in sorted(used - modules):
            try:
                found[name] = self.ask({"do": "name", "name": name})
            except AttributeError:
                continue  # the test fails where it uses it
        return found


def run(tests: Sequence[str], channel: int) -> None:
    """Run the tests in order up to the first that fails, and write the verdict to stdout."""
    verdict_file = os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    verdict = judge(tests, Code(socket.socket(fileno=channel)))
    os.write(verdict_file, json.dumps(verdict).encode())


def judge(tests: Sequence[str], code: Code) -> dict[str, Any]:
    """Return whether all tests passed (`passed`), could be run at all (`runnable`), and what went wrong (`reason`)."""
    where = "the code does not run"
    try:
        code.result()
        names = code.names(tests)
        for number, test in enumerate(tests, start=1):
            where = f"test {number} of {len(tests)}"
            exec(compile(test, "test", "exec"), dict(names))
    except UnsendableError as error:
        return {"passed": False, "runnable": False, "reason": f"{where}: {error}"}
    except BaseException as error:  # noqa: BLE001 - whatever ends a test early is a failure of it
        return {"passed": False, "runnable": True, "reason": f"{where}: {_text_of(error)}"}
    return {"passed": True, "runnable": True, "reason": ""}


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except TypeError:  # it holds a Remote
        text = ""
    return f"{type(error).__name__}: {text}"[:_LONGEST_REASON].removesuffix(": ")
