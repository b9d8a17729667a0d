"""Rows of Parquet and JSONL files, each with the place that messages about it name.

Parquet is read in small batches: read whole, nested columns of more than 2 GiB cannot be converted by Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from vipray.data.golds import JsonNumber
from vipray.errors import ConfigError

_BATCH_ROWS = 1024
_PARQUET_MAGIC = b"PAR1"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One row of a file: where it is, for messages, and its values by column."""

    place: str
    values: dict[str, Any]


class RowFile(Protocol):
    """A file of rows."""

    path: Path

    def first(self) -> Row | None:
        """The first row, with all its columns."""

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row, with at least those of the columns that the file has; numbered from 1 in messages."""


def open_rows(path: Path) -> RowFile:
    """Open a Parquet or a JSONL file, whatever it is called.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return ParquetRows(path) if is_parquet or path.suffix == ".parquet" else JsonLines(path)


class ParquetRows:
    """Rows of a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"{path} cannot be read as Parquet: {_first_line(error)}") from None

    def first(self) -> Row | None:
        """The first row, with all its columns."""
        return next(iter(self.rows(self._file.schema_arrow.names)), None)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row, batch by batch."""
        wanted = [name for name in self._file.schema_arrow.names if name in columns]
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{self.path} row {number}", values)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"{self.path} cannot be read after row {number}: {_first_line(error)}; where Arrow cannot convert it, "
                "rewrite the file with smaller row groups"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.path}: a text after row {number} is not UTF-8") from None
        if number != self._file.metadata.num_rows:
            raise ConfigError(f"{self.path} gave {number} rows and should hold {self._file.metadata.num_rows}")


class JsonLines:
    """Rows of a file with one JSON object a line; numbers are kept as they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def first(self) -> Row | None:
        """The first object."""
        return next(self._objects(), None)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every object; lines with nothing on them are passed over."""
        del columns  # a line is parsed as a whole
        return self._objects()

    def _objects(self) -> Iterator[Row]:
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                    if text.strip():
                        place = f"{self.path} row {number}"
                        yield Row(place, parse_object(text, place))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from None


def parse_object(line: bytes, place: str) -> dict[str, Any]:
    """Parse a line of JSONL; its numbers become `JsonNumber`, digit by digit.

    Raises:
        ConfigError: it is not a JSON object.
    """
    try:
        value = json.loads(
            line.decode(), parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber, strict=False
        )
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8 text (byte {error.start + 1}): neither JSONL nor Parquet") from None
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply to be a prompt") from None
    except ValueError as error:
        raise ConfigError(f"{place} is not JSON: {error}; a JSONL file has one object a line") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is a JSON {type(value).__name__}, not an object: write one object a line")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
