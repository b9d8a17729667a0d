"""What a gradient must not depend on: ranks, micro-batches, packing, padding, the order of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.learner.support import OneRank, gradients, make_allocation, make_rollouts, options, run_ranks
from vipray.advantages import advantages
from vipray.config import LearnerConfig, LoraConfig
from vipray.learner.trainer import Trainer

ALLOCATION = make_allocation(n=(2, 9, 4, 3), weight=(1.0, 0.5, 2.0, 1.0))
CONFIG = LearnerConfig(threads=1, precision="fp32", max_grad_norm=1e9, clip_low=0.9, clip_high=9.0)
TOLERANCE = 1e-5  # relative, in fp32


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def flat_gradient(model):
    grads = [parameter.grad for parameter in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


@pytest.fixture(scope="module")
def reference(tiny_model):
    """The gradient of the loss written out, sequence by sequence: mean over prompts, over rollouts, over tokens."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rows = [batch.to_pylist()[0] for batch in make_rollouts(ALLOCATION)]
    values = advantages([r["prompt_id"] for r in rows], np.array([r["reward"] for r in rows]), "rloo")
    groups: dict[str, list[torch.Tensor]] = {}
    for row, advantage in zip(rows, values.tolist(), strict=True):
        prompt, completion = row["prompt_token_ids"], row["completion_token_ids"]
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1)[torch.arange(len(completion)), torch.tensor(completion)]
        ratio = torch.exp(logprobs - torch.tensor(row["logprobs"]))
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.1, 10.0) * advantage)
        groups.setdefault(row["prompt_id"], []).append(objective.mean())
    weight = ALLOCATION.weight_of()
    terms = [weight[prompt_id] * torch.stack(group).mean() for prompt_id, group in groups.items()]
    (-torch.stack(terms).mean()).backward()
    return flat_gradient(model)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_row_tokens": 1},
        {"max_row_tokens": 20},
        {"max_row_tokens": 45},
        {"packing": "off"},
        {"packing": "off", "max_row_tokens": 30},
        {"activation_checkpointing": True},
    ],
    ids=str,
)
def test_the_gradient_is_that_of_the_loss_written_out(settings, tiny_model, reference):
    with OneRank(replace(CONFIG, **settings), options(tiny_model)) as trainer:
        (got,) = gradients(trainer, make_rollouts(ALLOCATION), ALLOCATION)
        (again,) = gradients(trainer, make_rollouts(ALLOCATION)[::-1], ALLOCATION)
    assert relative(got, reference) < TOLERANCE
    assert torch.equal(got, again)  # the order of arrival decides nothing


def _save_gradients(rendezvous, config, trainer_options, path):
    trainer = Trainer(config, trainer_options, rendezvous)
    (got,) = gradients(trainer, make_rollouts(ALLOCATION), ALLOCATION)
    one_group = make_allocation(n=(2,))
    (lonely,) = gradients(trainer, make_rollouts(one_group), one_group)
    if rendezvous.rank == 0:
        torch.save((got, lonely), path)
    trainer.shutdown()


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("packing", ["auto", "off"])
def test_any_number_of_ranks_gives_the_same_gradient(num_ranks, packing, tiny_model, reference, tmp_path):
    """Three ranks and a group of two: one of them has no rollout at all."""
    config = replace(CONFIG, packing=packing)
    run_ranks(_save_gradients, num_ranks, config, options(tiny_model), tmp_path / "gradients.pt")
    got, lonely = torch.load(tmp_path / "gradients.pt")
    assert relative(got, reference) < TOLERANCE
    one_group = make_allocation(n=(2,))
    with OneRank(config, options(tiny_model)) as trainer:
        (alone,) = gradients(trainer, make_rollouts(one_group), one_group)
    assert relative(lonely, alone) < TOLERANCE


def test_padding_on_the_left_gives_the_same_gradient(tiny_model, reference):
    """As a trainer of padded rows would do it: plain mode pads on the right, packed mode not at all."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rows = [batch.to_pylist()[0] for batch in make_rollouts(ALLOCATION)]
    values = advantages([r["prompt_id"] for r in rows], np.array([r["reward"] for r in rows]), "rloo")
    texts = [row["prompt_token_ids"] + row["completion_token_ids"] for row in rows]
    longest = max(len(text) for text in texts)
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    seen = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=seen, position_ids=positions).logits
    n = dict(zip(ALLOCATION.prompt_ids, ALLOCATION.n.tolist(), strict=True))
    weight = ALLOCATION.weight_of()
    loss = torch.zeros(())
    for row, line, advantage in zip(rows, logits, values.tolist(), strict=True):
        completion = torch.tensor(row["completion_token_ids"])
        logprobs = torch.log_softmax(line[-len(completion) - 1 : -1], -1)[torch.arange(len(completion)), completion]
        ratio = torch.exp(logprobs - torch.tensor(row["logprobs"]))
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.1, 10.0) * advantage).mean()
        loss = loss - weight[row["prompt_id"]] * objective / (len(n) * n[row["prompt_id"]])
    loss.backward()
    got = flat_gradient(model)
    assert relative(got, reference) < TOLERANCE


def test_adapters_leave_the_rest_alone(tiny_model):
    config = replace(CONFIG, lora=LoraConfig(rank=4), learning_rate=1e-2, warmup_steps=0)
    with OneRank(config, options(tiny_model)) as trainer:
        before = {name: p.detach().full_tensor().clone() for name, p in trainer._model.module.named_parameters()}
        *first, _ = trainer.publish(0)
        trainer.train(make_rollouts(ALLOCATION), ALLOCATION)
        *second, _ = trainer.publish(1)
        changed = {
            name
            for name, p in trainer._model.module.named_parameters()
            if not torch.equal(p.detach().full_tensor(), before[name])
        }
    assert changed and all("lora_" in name for name in changed)
    assert any(not np.array_equal(x, y) for x, y in zip(first, second, strict=True))  # merged weights are published
