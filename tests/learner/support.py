"""Allocations and rollouts for tests of the learner, and ranks in processes of their own."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.multiprocessing as mp

from vipray.config import LearnerConfig
from vipray.learner.trainer import Rendezvous, Trainer, TrainerOptions
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span


def make_allocation(step=0, n=(2, 9, 4), weight=None):
    ones = np.ones(len(n))
    prompts = tuple("abcdefghijkl"[: len(n)])
    weights = ones if weight is None else np.array(weight)
    return Allocation(step, prompts, np.array(n), weights, ones / 2, ones, Span(0.0, 0.0))


def make_rollouts(allocation, seed=0, logprobs=(-6.0, -5.0)):
    """Uneven groups of random completions with random rewards, the first of each group right, the second wrong."""
    rng = np.random.default_rng(seed)
    return [_row(rollout_id, rng, logprobs) for rollout_id in allocation.rollout_ids()]


def _row(rollout_id: RolloutId, rng, logprobs):
    length = int(rng.integers(1, 9))
    reward = float(rollout_id.k == 0 or (rollout_id.k > 1 and rng.random() < 0.5))
    low, high = logprobs
    row = {
        **rollout_id._asdict(),
        "generator_id": "g0",
        "policy_version_first": rollout_id.step,
        "policy_version_last": rollout_id.step,
        "prompt_token_ids": [2 + ord(rollout_id.prompt_id) % 50] * (3 + ord(rollout_id.prompt_id) % 3),
        "completion_token_ids": rng.integers(2, 250, length).tolist(),
        "logprobs": (low + (high - low) * rng.random(length)).tolist(),
        "finish_reason": "length" if length == 8 else "stop",
        "text": "",
        "latency_s": 0.1,
        "reward": reward,
        "outcome": "correct" if reward else "wrong",
        "extracted": "",
    }
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)


def changed(rollouts, **values):
    """The same rollouts with other values in their rows."""
    rows = [batch.to_pylist()[0] | values for batch in rollouts]
    return [pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA) for row in rows]


def options(folder: Path, dtype="float32", rounding="nearest", **values: Any) -> TrainerOptions:
    return TrainerOptions(folder, "rloo", 1.0, dtype, rounding, 1 << 16, 0, **values)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OneRank:
    """A trainer that is a group of its own, for a `with` statement."""

    def __init__(self, config: LearnerConfig, options: TrainerOptions) -> None:
        self._arguments = config, options

    def __enter__(self) -> Trainer:
        self.trainer = Trainer(*self._arguments, Rendezvous(0, 1, "127.0.0.1", free_port()))
        return self.trainer

    def __exit__(self, *_error: object) -> None:
        self.trainer.shutdown()


def full_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What the optimiser moves, whole; a collective."""
    return {name: master.detach().full_tensor().clone() for name, master in trainer._weights.masters.items()}


def gradients(trainer: Trainer, rollouts, allocation) -> torch.Tensor:
    """The gradient of a batch, whole and flat, before clipping; a collective."""
    seen: list[torch.Tensor] = []
    step = trainer._optimizer.adamw.step

    def look(*_args: Any) -> None:
        masters = trainer._weights.masters.values()
        seen.append(torch.cat([master.grad.full_tensor().flatten() for master in masters]).clone())

    adamw: Any = trainer._optimizer.adamw
    adamw.step = look
    try:
        trainer.train(rollouts, allocation)
    finally:
        adamw.step = step
    return torch.stack(seen)


def run_ranks(work: Any, num_ranks: int, *arguments: Any) -> None:
    """Run `work(rendezvous, *arguments)` in a process for each rank."""
    mp.spawn(_rank, args=(work, num_ranks, free_port(), arguments), nprocs=num_ranks)


def _rank(rank: int, work: Any, num_ranks: int, port: int, arguments: tuple[Any, ...]) -> None:
    work(Rendezvous(rank, num_ranks, "127.0.0.1", port), *arguments)
