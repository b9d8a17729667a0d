"""The code under test: its module is run, then its names, attributes and calls are served to the tests.

Whatever the code does in here, all that it can bring about is what values the tests get to see.
"""

from __future__ import annotations

import os
import socket
import sys
import types
from typing import Any

from vipray.verifiers.sandbox.values import as_bytes, decode, encode, receive

_LONGEST_REASON = 300


def serve(code: str, channel: int) -> None:
    """Run the code as a module, then answer requests until the tests hang up."""
    connection = socket.socket(fileno=channel)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    subject = Subject()
    connection.sendall(as_bytes(subject.answer({"do": "run", "code": code})))
    while request := receive(connection):
        connection.sendall(as_bytes(subject.answer(request)))


class Subject:
    """The code's module, and the objects that the tests know by number."""

    def __init__(self) -> None:
        self._module = types.ModuleType("answer")
        self._objects: list[Any] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; the value, or the name and text of the exception."""
        try:
            return {"value": encode(self._do(request), self._number_of)}
        except BaseException as error:  # noqa: BLE001 - foreign code, sys.exit() included: the tests judge it
            return {"error": type(error).__name__, "text": str(error)[:_LONGEST_REASON]}

    def _do(self, request: dict[str, Any]) -> Any:
        match request["do"]:
            case "run":
                sys.modules["answer"] = self._module
                exec(compile(request["code"], "answer.py", "exec"), self._module.__dict__)
                return None
            case "name":
                return getattr(self._module, request["name"])
            case "attribute":
                return getattr(self._objects[request["of"]], request["name"])
            case "list":
                return list(self._objects[request["of"]])
            case "call":
                arguments = decode(request["arguments"], self._objects.__getitem__)
                named = decode(request["named"], self._objects.__getitem__)
                return self._objects[request["of"]](*arguments, **named)
            case other:
                raise ValueError(f"unknown request {other}")

    def _number_of(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1
