"""State on disk: nested values with NumPy arrays in one `.npz` file, written whole or not at all.

state.npz
  tree        JSON: the nesting and its plain values; an array stands there as {"array": "a0"}
  a0, a1, …   the arrays

A mapping is written as {"map": {…}}, so that none can be taken for an array. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vipray.errors import ConfigError

_TREE = "tree"
# What opening a file raises that is no `.npz` file or no longer one; its check sums find what is damaged inside.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
)


@contextmanager
def whole_file(path: Path, *, fsync: bool = True) -> Iterator[Path]:
    """Give the path of a partial file that takes the place of `path` at the end, unless an error comes before.

    Args:
        path: the file; its folder is made where it is missing.
        fsync: have the bytes on disk before the file takes its name, so that a crash of the machine leaves no less.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        if fsync:
            _sync(partial)
        os.replace(partial, path)
        if fsync:
            _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_state(path: Path, tree: Any) -> None:
    """Write nested dicts, lists and tuples of arrays, str, int, float, bool and None to an `.npz` file.

    Floats come back exactly, inf and NaN too; tuples come back as lists, NumPy scalars as Python's.

    Raises:
        TypeError: a value of another type, an array of objects, or a key that is no str.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    text = json.dumps(_packed(tree, arrays))
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_TREE: np.frombuffer(text.encode(), dtype=np.uint8)}, **arrays)


def read_state(path: Path) -> Any:
    """Read what `write_state` wrote.

    Raises:
        ConfigError: the file is missing, damaged or of another kind.
    """
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
        if damaged is not None:
            raise ValueError(f"the check sum of {damaged} is wrong")
        with np.load(path, allow_pickle=False) as arrays:
            return _unpacked(json.loads(arrays[_TREE].tobytes()), arrays)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except _DAMAGE as error:
        details = " ".join(str(error).split())
        raise ConfigError(f"{path} is damaged or no state file: {type(error).__name__}: {details}") from None


def _packed(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """The value as JSON can hold it; arrays go to `arrays`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of objects cannot be part of a state: give it a numeric or text dtype")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"keys of a state must be str, got {key!r}")
        return {"map": {key: _packed(part, arrays) for key, part in value.items()}}
    if isinstance(value, list | tuple):
        return [_packed(part, arrays) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be part of a state: {value!r}")


def _unpacked(value: Any, arrays: Mapping[str, Any]) -> Any:
    """The opposite of `_packed`."""
    if isinstance(value, list):
        return [_unpacked(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    return {key: _unpacked(part, arrays) for key, part in value["map"].items()}


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
