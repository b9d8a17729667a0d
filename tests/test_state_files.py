from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vipray.errors import ConfigError
from vipray.state_files import read_state, whole_file, write_state

DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.unicode_string_dtypes(max_len=4)
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), ARRAYS)
TREES = st.recursive(
    PLAIN,
    lambda part: st.one_of(st.lists(part, max_size=4), st.dictionaries(st.text(), part, max_size=4)),
    max_leaves=12,
)


def same(one, other):
    """Equal in type, value and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one.hex() == other.hex())
    return one == other


@settings(max_examples=150, deadline=None)
@given(tree=TREES)
def test_every_state_comes_back_as_it_was(tree):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        write_state(path, tree)
        assert same(read_state(path), tree)
        assert [file.name for file in path.parent.iterdir()] == ["state.npz"]


def test_numpy_scalars_become_pythons_and_tuples_lists(tmp_path):
    scalars = (np.float64(0.1), np.float32(0.5), np.int32(7), np.bool_(True), np.str_("a"))
    write_state(tmp_path / "s.npz", {"scalars": scalars, "of": {"array": "a0", "map": ()}})
    read = read_state(tmp_path / "s.npz")
    assert read == {"scalars": [0.1, 0.5, 7, True, "a"], "of": {"array": "a0", "map": []}}
    assert [type(value) for value in read["scalars"]] == [float, float, int, bool, str]


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, [b"bytes"], np.array([None]), 1j, Path("x")])
def test_what_a_state_cannot_hold_is_refused_and_leaves_the_old_file(tmp_path, value):
    path = tmp_path / "s.npz"
    write_state(path, 1)
    with pytest.raises(TypeError):
        write_state(path, value)
    assert read_state(path) == 1 and list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "file"
    with whole_file(path) as partial:
        partial.write_text("old")
    with pytest.raises(OSError, match="disk is full"), whole_file(path) as partial:
        partial.write_text("ne")
        raise OSError("disk is full")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_a_file_that_is_missing_foreign_or_cut_is_named(tmp_path):
    path = tmp_path / "s.npz"
    with pytest.raises(ConfigError, match=r"s\.npz is missing"):
        read_state(path)
    np.savez(path, x=np.ones(3))
    with pytest.raises(ConfigError, match=r"s\.npz is damaged or no state file"):
        read_state(path)
    write_state(path, {"x": np.arange(100)})
    whole = path.read_bytes()
    for content in (b"", b"\0" * 500, b"text", whole[:200], whole[:-1], whole[5:]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"s\.npz is damaged or no state file"):
            read_state(path)
    with pytest.raises(ConfigError, match="is damaged or no state file"):
        read_state(tmp_path)


def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path):
    path = tmp_path / "s.npz"
    tree = {"x": np.arange(3.0), "y": ["z", 1]}
    write_state(path, tree)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            read = read_state(path)
        except ConfigError:
            continue
        assert same(read, tree), position


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "s.npz"
    tree = np.frombuffer(b'{"array": "a0"}', dtype=np.uint8)
    np.savez(path, allow_pickle=True, tree=tree, a0=np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match="Object arrays cannot be loaded"):
        read_state(path)
