"""What tells one prompt set from another, however its Arrow table is cut into chunks."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def fingerprint(table: pa.Table) -> str:
    """SHA-256 over names, types and values of all columns, in the order of the rows.

    Args:
        table: columns of strings, integers, or lists of these, without nulls.
    """
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        digest.update(f"{field.name} {field.type} {table.num_rows}".encode())
        for part in _column_digests(column.chunks, field.type):
            digest.update(part)
    return digest.hexdigest()


def _column_digests(chunks: list[Any], kind: pa.DataType) -> list[bytes]:
    """Of the lengths and of the values apart: joined, they would depend on where chunks end."""
    if pa.types.is_list(kind):
        lengths = _digest(pc.list_value_length(chunk).to_numpy(zero_copy_only=False) for chunk in chunks)
        return [lengths, *_column_digests([chunk.flatten() for chunk in chunks], kind.value_type)]
    if pa.types.is_string(kind):
        lengths = _digest(pc.binary_length(chunk).to_numpy(zero_copy_only=False) for chunk in chunks)
        return [lengths, _digest(_string_bytes(chunk) for chunk in chunks)]
    assert pa.types.is_integer(kind), kind
    return [_digest(chunk.to_numpy(zero_copy_only=False) for chunk in chunks)]


def _digest(arrays: Any) -> bytes:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _string_bytes(chunk: pa.StringArray) -> Any:
    """UTF-8 bytes of all strings of a chunk, one after the other."""
    _, offsets, data = chunk.buffers()
    if data is None or not len(chunk):
        return np.empty(0, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    return np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
