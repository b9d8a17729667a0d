"""Checkpoint folders: which is the newest, what is kept, what a crash leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vipray.checkpoints import (
    CheckpointManifest,
    begin,
    complete,
    complete_checkpoints,
    find_newest,
    partial_folder,
    read_manifest,
    set_apart_newer,
)
from vipray.errors import ConfigError


def manifest(step, **run):
    return CheckpointManifest(step, "tiny", ["w"], [[2]], "nearest", seed=0, run=run)


def make(root, step, keep_last=9):
    (begin(root, step) / "run").mkdir()
    return complete(root, manifest(step, rows=step), keep_last)


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_begin_makes_an_empty_folder_in_place_of_what_a_crash_left(tmp_path):
    root = tmp_path / "deep" / "checkpoints"
    assert begin(root, 20) == partial_folder(root, 20)
    (partial_folder(root, 20) / "run").mkdir()
    (partial_folder(root, 20) / "run" / "half").write_text("x")
    assert list(begin(root, 20).iterdir()) == []


def test_a_checkpoint_holds_the_drivers_files_and_facts(tmp_path):
    run = begin(tmp_path, 7) / "run"
    run.mkdir()
    (run / "sampler.json").write_text("{}")
    folder = complete(tmp_path, manifest(7, prompts=["a", "b"], rows=3), keep_last=1)
    assert folder == tmp_path / "step-000007" and names(folder) == ["checkpoint.json", "run"]
    assert read_manifest(folder).run == {"prompts": ["a", "b"], "rows": 3}


def test_a_manifest_from_before_there_were_facts_can_be_read(tmp_path):
    folder = make(tmp_path, 1)
    written = json.loads((folder / "checkpoint.json").read_text())
    del written["run"]
    (folder / "checkpoint.json").write_text(json.dumps(written))
    assert read_manifest(folder).run == {}


def test_the_newest_that_is_complete_is_found_and_newer_ones_are_named(tmp_path):
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    (tmp_path / "step-000030" / "checkpoint.json").write_text("")
    (tmp_path / "step-000040" / "checkpoint.json").unlink()
    (tmp_path / "step-000050").mkdir()
    (tmp_path / "step-000050" / "checkpoint.json").write_text(
        (tmp_path / "step-000010" / "checkpoint.json").read_text()
    )
    for step in (10, 30, 60):  # of step 10: older than what is found
        begin(tmp_path, step)
    assert find_newest(tmp_path) == (
        tmp_path / "step-000020",
        [
            ".step-000060.partial: not complete",
            "step-000050: checkpoint.json is of step 10",
            "step-000040: checkpoint.json cannot be read (FileNotFoundError)",
            "step-000030: checkpoint.json cannot be read (JSONDecodeError)",
            ".step-000030.partial: not complete",
        ],
    )


def test_nothing_is_found_where_nothing_is_complete(tmp_path):
    assert find_newest(tmp_path / "nowhere") == (None, [])
    begin(tmp_path, 5)
    assert find_newest(tmp_path) == (None, [".step-000005.partial: not complete"])


def test_steps_are_compared_as_numbers(tmp_path):
    for step in (999_999, 1_000_000):
        make(tmp_path, step)
    assert find_newest(tmp_path)[0] == tmp_path / "step-1000000"


def test_newer_checkpoints_are_set_apart_and_make_way(tmp_path):
    for step in (10, 20, 30):
        make(tmp_path, step)
    (tmp_path / "step-000040").mkdir()  # no checkpoint, and in the way all the same
    expected = [tmp_path / f".step-0000{step}.abandoned" for step in (20, 30, 40)]
    assert set_apart_newer(tmp_path, 10) == expected
    assert find_newest(tmp_path) == (tmp_path / "step-000010", [])
    again = make(tmp_path, 20)
    assert set_apart_newer(tmp_path, 10) == expected[:1] and not again.exists()
    assert read_manifest(expected[0]).step == 20
    assert set_apart_newer(tmp_path, 10) == set_apart_newer(tmp_path / "nowhere", 0) == []


def test_the_last_ones_are_kept_and_leftovers_removed(tmp_path):
    for step in (1, 2, 3):
        make(tmp_path, step)
    begin(tmp_path, 2)
    begin(tmp_path, 9)
    (tmp_path / ".step-000000.old").mkdir()
    complete_steps = [path.name for path in complete_checkpoints(tmp_path)]
    assert complete_steps == ["step-000001", "step-000002", "step-000003"]
    make(tmp_path, 4, keep_last=2)
    assert names(tmp_path) == [".step-000009.partial", "step-000003", "step-000004"]


def test_a_checkpoint_is_complete_even_if_an_old_one_cannot_be_removed(tmp_path, monkeypatch, caplog):
    make(tmp_path, 1)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("vipray.checkpoints.shutil.rmtree", refuse)
    assert make(tmp_path, 2, keep_last=1) == tmp_path / "step-000002"
    assert find_newest(tmp_path) == (tmp_path / "step-000002", [])
    assert "Permission denied" in caplog.text


def test_a_complete_checkpoint_is_never_overwritten(tmp_path):
    folder = make(tmp_path, 3)
    begin(tmp_path, 3)
    with pytest.raises(FileExistsError, match="step-000003 is there already"):
        complete(tmp_path, manifest(3), keep_last=1)
    assert read_manifest(folder).run == {"rows": 3}
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        read_manifest(partial_folder(tmp_path, 3))


def test_the_manifest_is_on_disk_before_the_folder_has_its_name(tmp_path, monkeypatch):
    """Seen from the calls that reach the operating system: every file and folder is synced, then renamed, then root."""
    import os

    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def look(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", look)
    monkeypatch.setattr(Path, "rename", renamed)
    root = tmp_path / "checkpoints"
    run = begin(root, 1) / "run"
    run.mkdir()
    (run / "state").write_text("x")
    complete(root, manifest(1), keep_last=1)
    at = events.index("rename")
    assert set(events[:at]) == {"checkpoint.json", "run", "state", ".step-000001.partial"}
    assert events[at - 1] == ".step-000001.partial" and events[at + 1 :] == ["checkpoints"]


def test_what_has_lost_the_drivers_part_is_neither_named_nor_found(tmp_path):
    make(tmp_path, 1)
    begin(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match="no folder run"):
        complete(tmp_path, manifest(2, rows=2), keep_last=1)
    assert names(tmp_path) == [".step-000002.partial", "step-000001"]
    (make(tmp_path, 3) / "run").rmdir()
    newest, skipped = find_newest(tmp_path)
    assert newest == tmp_path / "step-000001"
    assert skipped == ["step-000003: the folder run is missing"]
