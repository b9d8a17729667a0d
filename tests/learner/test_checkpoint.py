"""Checkpoints of the learner: exact to the bit, and no reason to end a training when they cannot be written."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributed.checkpoint import filesystem

from tests.learner.support import (
    OneRank,
    full_weights,
    make_allocation,
    make_rollouts,
    options,
    run_ranks,
)
from vipray.checkpoints import begin, complete_checkpoints, find_newest, read_manifest
from vipray.config import LearnerConfig
from vipray.errors import LearnerGroupError
from vipray.learner.trainer import Rendezvous, Trainer

CONFIG = LearnerConfig(threads=1, precision="fp32", learning_rate=1e-2, warmup_steps=2, max_row_tokens=40)
_STEPS = 4


def train(trainer, *steps):
    for step in steps:
        trainer.train(make_rollouts(make_allocation(step), seed=step), make_allocation(step))


def state(trainer, version):
    """Masters, moments and published bytes: whatever a later step depends on."""
    found = {f"master {name}": tensor for name, tensor in full_weights(trainer).items()}
    for name, master in trainer._weights.masters.items():
        for key, value in trainer._optimizer.adamw.state[master].items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[f"{key} {name}"] = whole.clone()
    *chunks, _ = trainer.publish(version)
    return found | {f"chunk {number}": torch.from_numpy(chunk) for number, chunk in enumerate(chunks)}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


VARIANTS: dict[str, tuple[LearnerConfig, dict[str, Any]]] = {
    "fp32": (CONFIG, {}),
    "cosine": (replace(CONFIG, schedule="cosine", warmup_steps=3, prompts_per_step=2), {"total_steps": 8}),
    "bf16": (replace(CONFIG, precision="bf16"), {"dtype": "bfloat16", "rounding": "stochastic"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(variant, tiny_model, tmp_path):
    config, values = VARIANTS[variant]
    with OneRank(config, options(tiny_model, **values)) as straight:
        train(straight, *range(_STEPS))
        expected = state(straight, _STEPS)
    with OneRank(config, options(tiny_model, **values)) as first:
        train(first, 0, 1)
        (begin(tmp_path, 2) / "run").mkdir()
        assert first.save(tmp_path, 2, keep_last=1, run={"rows": 30}) is None
        train(first, 2)  # what is written is the state at the call, whatever comes behind it
        assert first.finish_saving() is None
    folder = tmp_path / "step-000002"
    assert (folder / "run").is_dir() and read_manifest(folder).run == {"rows": 30}
    with OneRank(config, options(tiny_model, **values)) as second:
        assert second.load(folder) == 2
        train(second, 2, 3)
        assert_same(state(second, _STEPS), expected)


def test_a_batch_read_back_from_disk_trains_to_the_same_bits(tiny_model, tmp_path):
    allocation = make_allocation()
    rollouts = make_rollouts(allocation)
    table = pa.Table.from_batches(rollouts)
    (whole,) = table.combine_chunks().to_batches()
    pq.write_table(table, tmp_path / "rollouts.parquet")
    (read,) = pq.read_table(tmp_path / "rollouts.parquet").combine_chunks().to_batches()
    found = []
    for batches in (rollouts, [whole], [read]):
        with OneRank(CONFIG, options(tiny_model)) as trainer:
            trainer.train(batches, allocation)
            found.append(state(trainer, 1))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def _fill_the_disk_of_one_rank(rendezvous, config, trainer_options, results):
    """Three saves: one that succeeds, one for which the last rank has no room, one that succeeds."""
    trainer = Trainer(config, trainer_options, rendezvous)
    root = results / "checkpoints"
    said = [trainer.save(root, 1, keep_last=2)]
    said.append(trainer.finish_saving())
    writer: Any = filesystem.FileSystemWriter
    write = writer.write_data

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    if rendezvous.rank == rendezvous.num_ranks - 1:
        writer.write_data = full
    said.append(trainer.save(root, 2, keep_last=2))
    train(trainer, 0)  # goes on beside it
    said.append(trainer.finish_saving())
    left = sorted(path.name for path in root.iterdir())
    writer.write_data = write
    train(trainer, 1)
    said += [trainer.save(root, 3, keep_last=2), trainer.save(root, 4, keep_last=2), trainer.finish_saving()]
    trainer.shutdown()
    torch.save((said, left), results / f"{rendezvous.rank}.pt")


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_full_disk_of_one_rank_is_told_alike_by_all_and_training_goes_on(num_ranks, tiny_model, tmp_path):
    config = replace(CONFIG, collective_timeout_s=60.0)
    run_ranks(_fill_the_disk_of_one_rank, num_ranks, config, options(tiny_model), tmp_path)
    root = tmp_path / "checkpoints"
    problem = (
        f"the checkpoint of step 2 could not be written below {root}: rank {num_ranks - 1}: "
        "[Errno 28] No space left on device; those before it are as they were"
    )
    for rank in range(num_ranks):
        said, left = torch.load(tmp_path / f"{rank}.pt")
        assert said == [None, None, None, problem, None, None, None]
        assert left == ["step-000001"]
    assert sorted(path.name for path in root.iterdir()) == ["step-000003", "step-000004"]


def _save_where_nothing_can_be_made(rendezvous, config, trainer_options, results):
    """The folder of checkpoints is a file, which only rank 0 meets; then it is none."""
    trainer = Trainer(config, trainer_options, rendezvous)
    said = [trainer.save(results / "blocked", 1, keep_last=1), trainer.save(results / "free", 2, keep_last=1)]
    said += [trainer.finish_saving(), trainer.finish_saving()]
    trainer.shutdown()
    torch.save(said, results / f"{rendezvous.rank}.pt")


def test_a_folder_that_cannot_be_made_is_told_alike_by_all(tiny_model, tmp_path):
    (tmp_path / "blocked").write_text("")
    run_ranks(_save_where_nothing_can_be_made, 2, CONFIG, options(tiny_model), tmp_path)
    for rank in range(2):
        first, second, *rest = torch.load(tmp_path / f"{rank}.pt")
        assert (first, rest) == (None, [None, None])
        assert second.startswith(f"the checkpoint of step 1 could not be written below {tmp_path / 'blocked'}: rank 0:")
    assert [path.name for path in complete_checkpoints(tmp_path / "free")] == ["step-000002"]


def _name_in_vain(rendezvous, config, trainer_options, results):
    trainer = Trainer(config, trainer_options, rendezvous)
    said = [trainer.save(results, 1, keep_last=1) for _ in range(2)]
    said.append(trainer.finish_saving())
    trainer.shutdown()
    torch.save(said, results / f"{rendezvous.rank}.pt")


def test_a_name_that_cannot_be_given_is_told_alike_by_all(tiny_model, tmp_path):
    """Rank 0 alone gives names, after everybody has written."""
    run_ranks(_name_in_vain, 2, CONFIG, options(tiny_model), tmp_path)
    for rank in range(2):
        first, second, last = torch.load(tmp_path / f"{rank}.pt")
        assert first is None and second is None
        assert last == (
            f"the checkpoint of step 1 could not be written below {tmp_path}: rank 0: {tmp_path / 'step-000001'} is "
            "there already; those before it are as they were"
        )
    assert find_newest(tmp_path) == (tmp_path / "step-000001", [])


def _die_while_writing(rendezvous, config, trainer_options, results):
    trainer = Trainer(config, trainer_options, rendezvous)
    writer: Any = filesystem.FileSystemWriter
    if rendezvous.rank == 1:
        writer.write_data = lambda *_arguments: os._exit(0)
    trainer.save(results, 2, keep_last=1)
    try:
        trainer.finish_saving()
    except LearnerGroupError as error:
        (results / "error.txt").write_text(str(error))
    trainer.shutdown()


def test_a_rank_that_dies_while_it_writes_costs_neither_a_wait_nor_the_drivers_files(tiny_model, tmp_path):
    """The driver may save the same step with new ranks; what it wrote before must be there still."""
    run = begin(tmp_path, 2) / "run"
    run.mkdir()
    run_ranks(_die_while_writing, 2, CONFIG, options(tiny_model), tmp_path)
    assert (tmp_path / "error.txt").read_text().startswith("learner rank 0 of 2, completing the last checkpoint:")
    assert run.is_dir()
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        assert trainer.save(tmp_path, 2, keep_last=1) is None and trainer.finish_saving() is None
    folder = tmp_path / "step-000002"
    assert find_newest(tmp_path) == (folder, []) and (folder / "run").is_dir()
    assert not any("__1_" in path.name for path in (folder / "learner").iterdir())  # nothing of the rank that died


def _outgrow_a_limit(rendezvous, config, trainer_options, results):
    trainer = Trainer(config, trainer_options, rendezvous)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    trainer.save(results / "checkpoints", 1, keep_last=1)
    problem = trainer.finish_saving()
    left = list((results / "checkpoints").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    trainer.save(results / "checkpoints", 2, keep_last=1)
    after = trainer.finish_saving()
    trainer.shutdown()
    torch.save((problem, left, after), results / "said.pt")


def test_what_the_system_itself_refuses_to_write_is_told(tiny_model, tmp_path):
    run_ranks(_outgrow_a_limit, 1, CONFIG, options(tiny_model), tmp_path)
    problem, left, after = torch.load(tmp_path / "said.pt", weights_only=False)
    assert problem.startswith("the checkpoint of step 1 could not be written") and "rank 0: " in problem
    assert left == [] and after is None


def _hang_while_writing(folder, model):
    """Complete a checkpoint after one step, then stop in the midst of writing the next."""
    trainer = Trainer(CONFIG, options(model), Rendezvous(0, 1, "127.0.0.1", 0))
    train(trainer, 0)
    trainer.save(folder / "checkpoints", 1, keep_last=1)
    trainer.finish_saving()
    np.save(folder / "expected.npy", _flat(trainer))
    write = filesystem._write_item

    def half(*arguments):
        result = write(*arguments)
        arguments[1].flush()
        (folder / "writing").touch()
        time.sleep(600)
        return result

    filesystem._write_item = half
    train(trainer, 1)
    trainer.save(folder / "checkpoints", 2, keep_last=1)
    time.sleep(600)


def _flat(trainer):
    return torch.cat([weights.flatten() for weights in full_weights(trainer).values()]).numpy()


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tiny_model, tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_hang_while_writing, args=(tmp_path, tiny_model))
    process.start()
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "writing").exists():
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.join()
    root = tmp_path / "checkpoints"
    assert any((root / ".step-000002.partial" / "learner").iterdir())  # killed in its midst
    newest, skipped = find_newest(root)
    assert newest == root / "step-000001" and skipped == [".step-000002.partial: not complete"]
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        assert trainer.load(root / "step-000001") == 1
        assert np.array_equal(_flat(trainer), np.load(tmp_path / "expected.npy"))
        train(trainer, 1)
        assert trainer.save(root, 2, keep_last=1) is None and trainer.finish_saving() is None
    assert [path.name for path in root.iterdir()] == ["step-000002"]
