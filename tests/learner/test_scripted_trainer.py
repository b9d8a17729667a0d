"""The learner without a model: as exact as the real one about its batch, and comparable between runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.learner.support import changed, make_allocation, make_rollouts
from vipray.checkpoints import begin, find_newest, partial_folder, read_manifest
from vipray.config import ScriptedConfig
from vipray.errors import BatchContractError, CheckpointError, ConfigError
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.learner.rendezvous import Rendezvous
from vipray.learner.scripted_trainer import ScriptedOptions, ScriptedTrainer
from vipray.learner.trainer_protocol import LearnerRank

CONFIG = ScriptedConfig(training_s=0.25, parameters=11)


class Sleeper:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def make(rank=0, num_ranks=1, config=CONFIG, **options) -> ScriptedTrainer:
    return ScriptedTrainer(config, ScriptedOptions(**options), Rendezvous(rank, num_ranks, "127.0.0.1", 1), Sleeper())


def train(trainer, *steps):
    metrics = {}
    for step in steps:
        metrics = trainer.train(make_rollouts(make_allocation(step), seed=step), make_allocation(step))
    return metrics


def vector(*ranks: LearnerRank, version=0) -> np.ndarray:
    return np.concatenate([next(iter(rank.publish(version))).view(np.float64) for rank in ranks])


def test_it_loads_no_torch():
    code = (
        "import sys, vipray.learner.scripted_trainer, vipray.learner.rendezvous, actors.learner\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_equal_batches_in_equal_order_give_equal_numbers():
    first, second = make(), make()
    train(first, 0, 1, 2)
    train(second, 0, 1, 2)
    assert np.array_equal(vector(first), vector(second))
    assert train(first, 3)["learner/fingerprint"] == train(second, 3)["learner/fingerprint"]


def test_anything_else_gives_other_numbers():
    allocation = make_allocation(3)
    rollouts = make_rollouts(allocation)
    swapped = [rollouts[1], rollouts[0], *rollouts[2:]]
    other_tokens = [*changed(rollouts[:1], completion_token_ids=[5], logprobs=[-1.0]), *rollouts[1:]]
    other_reward = [*changed(rollouts[:1], reward=0.5), *rollouts[1:]]
    reweighted = replace(allocation, prompt_weight=np.array([1.0, 1.0, 1.0 + 2**-52]))
    found = {}
    for name, batch, given in [
        ("same", rollouts, allocation),
        ("order", swapped, allocation),
        ("tokens", other_tokens, allocation),
        ("reward", other_reward, allocation),
        ("weight", rollouts, reweighted),
    ]:
        trainer = make()
        trainer.train(batch, given)
        found[name] = vector(trainer).tobytes()
    trainer = make(seed=1)
    trainer.train(rollouts, allocation)
    found["seed"] = vector(trainer).tobytes()
    for name, steps in [("steps", (0, 1)), ("swapped steps", (1, 0))]:
        trainer = make()
        train(trainer, *steps)
        found[name] = vector(trainer).tobytes()
    assert len(set(found.values())) == len(found)


def test_a_batch_may_come_in_record_batches_of_any_size():
    allocation = make_allocation()
    rollouts = make_rollouts(allocation)
    (whole,) = pa.Table.from_batches(rollouts).combine_chunks().to_batches()
    one, many = make(), make()
    assert one.train([whole], allocation) == many.train(rollouts, allocation)
    assert np.array_equal(vector(one), vector(many))


def test_a_batch_that_is_not_the_allocations_is_refused_and_moves_nothing():
    trainer = make()
    before = vector(trainer)
    with pytest.raises(BatchContractError, match="1 are missing"):
        trainer.train(make_rollouts(make_allocation())[1:], make_allocation())
    assert np.array_equal(vector(trainer), before)


def test_metrics_are_those_that_a_run_needs():
    sleeper = Sleeper()
    trainer = ScriptedTrainer(CONFIG, ScriptedOptions(), Rendezvous(0, 1, "127.0.0.1", 1), sleeper)
    rollouts = make_rollouts(make_allocation())
    metrics = trainer.train(rollouts, make_allocation())
    assert metrics["engine/logprob_difference/mean"] == 0.0 and metrics["groups/without_signal"] == 0.0
    assert metrics["learner/tokens"] == sum(len(row.to_pylist()[0]["completion_token_ids"]) for row in rollouts)
    assert metrics["learner/fingerprint"] == pytest.approx(vector(trainer).sum())
    silent = trainer.train(changed(rollouts, reward=1.0), make_allocation())
    assert silent["groups/without_signal"] == 3
    assert sleeper.slept == [0.25, 0.25]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 16])
async def test_engines_load_what_the_ranks_publish(num_ranks):
    ranks = [make(rank, num_ranks) for rank in range(num_ranks)]
    for rank in ranks:
        train(rank, 0)
    published = [list(rank.publish(5)) for rank in ranks]
    chunks, manifests = [chunk for chunk, _ in published], [manifest for _, manifest in published]
    assert all(manifest == manifests[0] for manifest in manifests) and manifests[0].version == 5
    assert manifests[0].num_groups == ranks[0].num_chunks == 1
    assert all(chunk.dtype == np.uint8 for chunk in chunks)
    assert await ScriptedEngine(Script({}, {})).load_weights(manifests[0], chunks) == 5
    alone = make()
    train(alone, 0)
    assert np.array_equal(np.concatenate([chunk.view(np.float64) for chunk in chunks]), vector(alone))
    (entry,) = manifests[0].entries
    assert sum(piece.nbytes for piece in entry.pieces) == 11 * 8 and entry.shape == (11,)


def test_a_run_that_was_interrupted_ends_where_the_other_does(tmp_path):
    straight, first = make(), make()
    train(straight, 0, 1, 2, 3)
    train(first, 0, 1)
    (begin(tmp_path, 2) / "run").mkdir()
    assert first.save(tmp_path, 2, keep_last=1, run={"rows": 4}) is None and first.finish_saving() is None
    folder = tmp_path / "step-000002"
    assert find_newest(tmp_path) == (folder, [])
    assert read_manifest(folder).run == {"rows": 4} and (folder / "run").is_dir()
    ranks = [make(rank, 2, seed=9) for rank in range(2)]
    for rank in ranks:
        assert rank.load(folder) == 2
        train(rank, 2, 3)
    assert np.array_equal(vector(*ranks), vector(straight))


def test_only_the_first_rank_writes(tmp_path):
    assert make(rank=1, num_ranks=2).save(tmp_path / "checkpoints", 1, keep_last=1) is None
    assert not (tmp_path / "checkpoints").exists()


def test_a_checkpoint_that_cannot_be_written_is_told_by_the_next_call(tmp_path):
    trainer = make()
    (tmp_path / "blocked").write_text("")
    assert trainer.save(tmp_path / "blocked", 1, keep_last=1) is None
    problem = trainer.save(tmp_path, 2, keep_last=1)
    assert problem is not None and problem.startswith("the checkpoint of step 1 could not be written below")
    assert trainer.save(tmp_path, 2, keep_last=1) is None  # there already
    assert "is there already" in str(trainer.finish_saving())
    assert trainer.finish_saving() is None
    assert find_newest(tmp_path) == (tmp_path / "step-000002", []) and not partial_folder(tmp_path, 2).exists()


def test_what_is_not_its_checkpoint_is_refused(tmp_path):
    make().save(tmp_path, 1, keep_last=1)
    folder = tmp_path / "step-000001"
    with pytest.raises(CheckpointError, match="than a vector of 12 numbers"):
        make(config=replace(CONFIG, parameters=12)).load(folder)
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        make().load(tmp_path / "step-000002")
    (folder / "learner" / "vector.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CheckpointError, match="is damaged"):
        make().load(folder)
