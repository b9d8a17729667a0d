from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vipray.data import files
from vipray.data.files import open_rows
from vipray.errors import ConfigError


def rows(path, columns=("a", "b")):
    return [(row.place.removeprefix(f"{path} "), row.values) for row in open_rows(path).rows(columns)]


def test_numbers_of_jsonl_are_kept_as_they_are_written(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"a": 27.0, "b": "034"}\r\n\n  \n{"a": 123456789012345678901234567890}\n{"a": 1e400}'
    )
    assert rows(path) == [
        ("row 1", {"a": "27.0", "b": "034"}),
        ("row 4", {"a": "123456789012345678901234567890"}),
        ("row 5", {"a": "1e400"}),
    ]
    assert all(type(value) is not float for _, values in rows(path) for value in values.values())


def test_line_separators_inside_texts_end_no_row(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "one\u2028two\x85three"}\n{"a": "b"}\n')
    assert [values["a"] for _, values in rows(path)] == ["one\u2028two\x85three", "b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}\n{"a": 1', "x.jsonl row 2 is not JSON"),
        (b'{"a": 1}\n[1]\n', "x.jsonl row 2 is a JSON list, not an object"),
        (b"3\n", "x.jsonl row 1 is a JSON .*not an object"),
        (b'{"a": "\xff"}', "x.jsonl row 1 is not UTF-8 text .byte 8.: neither JSONL nor Parquet"),
        (b"[" * 100_000, "x.jsonl row 1 is nested too deeply"),
    ],
)
def test_broken_lines_are_named(tmp_path, content, words):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as refused:
        rows(path)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read: No such file"):
        open_rows(tmp_path / "none.jsonl")
    (tmp_path / "x.parquet").write_text("not at all")
    with pytest.raises(ConfigError, match=r"x\.parquet cannot be read as Parquet"):
        open_rows(tmp_path / "x.parquet")
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), whole)
    (tmp_path / "half").write_bytes(whole.read_bytes()[:500])  # a file is Parquet by its first bytes too
    with pytest.raises(ConfigError, match=r"half cannot be read as Parquet"):
        open_rows(tmp_path / "half")


def nested(path, num_rows):
    prompts = [[{"role": "system", "content": "s"}, {"role": "user", "content": f"q{i}"}] for i in range(num_rows)]
    pq.write_table(pa.table({"a": prompts, "b": [str(i) for i in range(num_rows)]}), path, row_group_size=num_rows)


def test_a_nested_file_of_one_row_group_is_read_in_batches_and_is_all_there(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    nested(path, 5000)

    def refuse(*_args, **_kwargs):
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    for reader in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, reader, refuse)
    monkeypatch.setattr(pq, "read_table", refuse)
    read = rows(path)
    assert [values["b"] for _, values in read] == [str(i) for i in range(5000)]
    assert read[4999] == (
        "row 5000",
        {"a": [{"role": "system", "content": "s"}, {"role": "user", "content": "q4999"}], "b": "4999"},
    )


def test_batches_are_small_whatever_the_row_group(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    nested(path, 3000)
    sizes, read = [], pq.ParquetFile.iter_batches

    def recorded(self, *args, **kwargs):
        for batch in read(self, *args, **kwargs):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    assert len(rows(path)) == 3000 and max(sizes) <= files._BATCH_ROWS


@pytest.mark.parametrize("num_batches", [0, 1])
def test_what_arrow_cannot_convert_is_named_with_the_remedy(tmp_path, monkeypatch, num_batches):
    path = tmp_path / "x.parquet"
    nested(path, 3000)
    read = pq.ParquetFile.iter_batches

    def breaks(self, *args, **kwargs):
        for _, batch in zip(range(num_batches), read(self, *args, **kwargs), strict=False):
            yield batch
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", breaks)
    with pytest.raises(ConfigError, match=r"x\.parquet cannot be read after row \d+.*smaller row groups"):
        rows(path)


def test_a_reader_that_ends_early_gives_an_error_and_no_smaller_set(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    nested(path, 3000)
    read = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: [next(read(*a, **k))])
    with pytest.raises(ConfigError, match=r"x\.parquet gave 1024 rows and should hold 3000"):
        rows(path)


def test_parquet_texts_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"], pa.binary()).buffers())
    pq.write_table(pa.table({"a": broken}), path)
    with pytest.raises(ConfigError, match=r"x\.parquet: a text after row \d is not UTF-8"):
        rows(path)
