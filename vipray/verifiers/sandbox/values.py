"""Values and messages between tests and the code that they test: builtin types by value, everything else by number.

A message is a length of 8 bytes and JSON. In it a plain value is itself or a pair of a letter and its content; `r` is
the number of an object that stays in the code's process. Nothing that is received can be more than plain data.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

_LENGTH_BYTES = 8
_LONGEST_BYTES = 64 << 20


class UnsendableError(TypeError):
    """A value of a type that has no plain form."""


def encode(value: Any, number_of: Callable[[Any], int]) -> Any:
    """Turn a value into JSON's types; subclasses of builtin types become the builtin type."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return ["i", hex(value)]
        case float():
            return float(value)
        case complex():
            return ["c", value.real, value.imag]
        case bytes() | bytearray():
            return ["b", bytes(value).hex()]
        case dict():
            return ["d", [[encode(key, number_of), encode(item, number_of)] for key, item in value.items()]]
        case list() | tuple() | set() | frozenset():
            letter = next(letter for letter, kind in _COLLECTIONS.items() if isinstance(value, kind))
            return [letter, [encode(item, number_of) for item in value]]
        case _:
            return ["r", number_of(value)]


def decode(value: Any, object_of: Callable[[int], Any]) -> Any:
    """Turn what `encode` made into a value."""
    if not isinstance(value, list):
        return value
    letter, *content = value
    match letter:
        case "i":
            return int(content[0], 16)
        case "c":
            return complex(*content)
        case "b":
            return bytes.fromhex(content[0])
        case "d":
            return {decode(key, object_of): decode(item, object_of) for key, item in content[0]}
        case "r":
            return object_of(content[0])
        case _:
            return _COLLECTIONS[letter](decode(item, object_of) for item in content[0])


_COLLECTIONS: dict[str, type] = {"l": list, "t": tuple, "s": set, "f": frozenset}


def as_bytes(message: dict[str, Any]) -> bytes:
    """One message, for `receive` or `receive_from_file`."""
    text = json.dumps(message).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Return the next message; None at the end.

    Raises:
        ValueError: it is no message, or too long.
    """
    return _receive(connection.recv)


def receive_from_file(descriptor: int) -> dict[str, Any] | None:
    """Return the message that a file begins with, and leave the rest of it unread."""
    return _receive(lambda size: os.read(descriptor, size))


def _receive(read: Callable[[int], bytes]) -> dict[str, Any] | None:
    length = int.from_bytes(_read_exactly(read, _LENGTH_BYTES), "big")
    if length > _LONGEST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    text = _read_exactly(read, length)
    message = json.loads(text) if text else None
    if not isinstance(message, dict | None):
        raise ValueError("a message that is no object")
    return message


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size and (part := read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts) if not size else b""
