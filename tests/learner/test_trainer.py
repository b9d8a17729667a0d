"""Ranks of a learner group in processes of their own, on gloo."""

from __future__ import annotations

import socket

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.multiprocessing as mp

from vipray.config import LearnerConfig
from vipray.learner.tensor_bytes import tensors_in
from vipray.learner.trainer import Rendezvous, Trainer, TrainerOptions
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span

_STEPS = 3


def make_allocation(step=0, n=(2, 9, 4)):
    ones = np.ones(len(n))
    return Allocation(step, tuple("abc"), np.array(n), ones, ones / 2, ones, Span(0.0, 0.0))


def make_rollouts(allocation, seed=0):
    """Uneven groups of random completions with random rewards, the first of each group right, the second wrong."""
    rng = np.random.default_rng(seed)
    return [_row(rollout_id, rng) for rollout_id in allocation.rollout_ids()]


def _row(rollout_id: RolloutId, rng):
    length = int(rng.integers(1, 9))
    reward = float(rollout_id.k == 0 or (rollout_id.k > 1 and rng.random() < 0.5))
    row = {
        **rollout_id._asdict(),
        "generator_id": "g0",
        "policy_version_first": 0,
        "policy_version_last": 0,
        "prompt_token_ids": [2 + ord(rollout_id.prompt_id) % 50] * (3 + ord(rollout_id.prompt_id) % 3),
        "completion_token_ids": rng.integers(2, 250, length).tolist(),
        "logprobs": (-6.0 + rng.random(length)).tolist(),
        "finish_reason": "length",
        "text": "",
        "latency_s": 0.1,
        "reward": reward,
        "outcome": "correct" if reward else "wrong",
        "extracted": "",
    }
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)


def without_signal(rollouts, outcome="wrong"):
    """The same rollouts, none of them rewarded."""
    rows = [batch.to_pylist()[0] | {"reward": 0.0, "outcome": outcome} for batch in rollouts]
    return [pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA) for row in rows]


def options(folder, dtype="float32", rounding="nearest"):
    return TrainerOptions(folder, "rloo", 1.0, dtype, rounding, chunk_nbytes=1 << 16, seed=0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank(rank, num_ranks, port, folder, results):
    config = LearnerConfig(ranks=num_ranks, threads=1, learning_rate=1e-2, warmup_steps=2, clip_low=0.9, clip_high=9.0)
    trainer = Trainer(config, options(folder), Rendezvous(rank, num_ranks, "127.0.0.1", port))
    metrics = []
    for step in range(_STEPS):
        allocation = make_allocation(step)
        metrics.append(trainer.train(make_rollouts(allocation, seed=step), allocation))
    for outcome in ("wrong", "error"):
        metrics.append(trainer.train(without_signal(make_rollouts(make_allocation()), outcome), make_allocation()))
    published = trainer.publish(_STEPS)
    if published is not None:
        manifest, chunks = published
        weights = {
            name: tensor.clone()
            for index, chunk in enumerate(chunks)
            for name, tensor in tensors_in(chunk, manifest.entries_of(index))
        }
        torch.save((manifest.version, metrics, weights), results / "rank0.pt")
    torch.save(metrics, results / f"metrics-{rank}.pt")
    trainer.shutdown()


def run_group(num_ranks, folder, results):
    results.mkdir()
    mp.spawn(_rank, args=(num_ranks, free_port(), folder, results), nprocs=num_ranks)
    return torch.load(results / "rank0.pt")


@pytest.fixture(scope="module")
def one_rank(tiny_model, tmp_path_factory):
    return run_group(1, tiny_model, tmp_path_factory.mktemp("one") / "results")


def test_two_ranks_train_to_the_same_weights_as_one(one_rank, tiny_model, tmp_path):
    version, metrics, weights = run_group(2, tiny_model, tmp_path / "two")
    assert version == one_rank[0] == _STEPS
    for mine, theirs in zip(metrics, one_rank[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    assert weights.keys() == one_rank[2].keys()
    for name, tensor in weights.items():
        assert torch.allclose(tensor, one_rank[2][name], atol=2e-5), name
    assert torch.load(tmp_path / "two" / "metrics-1.pt") == metrics  # every rank reports the same


def test_the_metrics_are_those_of_the_batch(one_rank):
    first, second, third, silent, unscored = one_rank[1]
    rows = [batch.to_pylist()[0] for batch in make_rollouts(make_allocation())]
    tokens = sum(len(row["completion_token_ids"]) for row in rows)
    assert first["learner/tokens"] == tokens
    rates = [metrics["learner/learning_rate"] for metrics in (first, second, third)]
    assert rates == pytest.approx([0.5e-2, 1e-2, 1e-2])  # a warm-up of two steps
    assert first["learner/grad_norm"] > 0 and first["learner/skipped_step"] == 0
    assert first["groups/without_signal"] == 0
    assert all(np.isfinite(list(metrics.values())).all() for metrics in (first, second, third))
    assert (silent["groups/without_signal"], silent["learner/skipped_step"]) == (3, 1)
    assert silent["learner/tokens"] > 0  # the engine is compared with the learner all the same
    assert (unscored["rollouts/unscored"], unscored["learner/tokens"], unscored["learner/skipped_step"]) == (15, 0, 1)


def test_the_first_step_equals_the_loss_written_out(tiny_model, one_rank):
    """mean over prompts of mean over rollouts of mean over tokens of min(ρ A, clip(ρ) A), by plain forward passes."""
    from transformers import AutoModelForCausalLM

    from vipray.advantages import advantages

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rows = [batch.to_pylist()[0] for batch in make_rollouts(make_allocation())]
    values = advantages([r["prompt_id"] for r in rows], np.array([r["reward"] for r in rows]), "rloo")
    terms: dict[str, list[float]] = {}
    for row, advantage in zip(rows, values, strict=True):
        prompt, completion = row["prompt_token_ids"], row["completion_token_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1)[torch.arange(len(completion)), torch.tensor(completion)]
        ratio = torch.exp(logprobs - torch.tensor(row["logprobs"]))
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.1, 10.0) * advantage)
        terms.setdefault(row["prompt_id"], []).append(float(objective.mean()))
    expected = -np.mean([np.mean(group) for group in terms.values()])
    assert one_rank[1][0]["learner/loss"] == pytest.approx(expected, rel=1e-3)


def test_a_batch_without_a_signal_changes_no_weight_and_is_counted(tiny_model):
    config = LearnerConfig(threads=1, learning_rate=1e-2)
    trainer = Trainer(config, options(tiny_model), Rendezvous(0, 1, "127.0.0.1", free_port()))
    try:
        _, before = trainer.publish(0) or (None, [])
        allocation = make_allocation()
        silent = without_signal(make_rollouts(allocation))
        metrics = trainer.train(silent, allocation)
        _, after = trainer.publish(1) or (None, [])
    finally:
        trainer.shutdown()
    assert metrics["groups/without_signal"] == 3
    assert all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
