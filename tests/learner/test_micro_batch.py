from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from vipray.learner.attention_mask import attention_mask
from vipray.learner.loss import token_logprobs
from vipray.learner.micro_batch import filler, packed_micro_batch, plain_micro_batch
from vipray.learner.packing import TrainingRollout, Unit


def unit(prompt, *completions):
    return Unit(
        tuple(
            TrainingRollout(tuple(prompt), tuple(c), tuple(-0.1 * t for t in c), float(k), 0.5 / len(c))
            for k, c in enumerate(completions)
        )
    )


TWO = (unit((5, 6, 7, 8), (9, 10, 11), (12,), (13, 14)), unit((5, 6), (20, 21), (22,)))


def test_a_packed_row_by_hand():
    batch = packed_micro_batch(TWO)
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 5, 6, 20, 21, 22]]
    assert batch.positions is not None and batch.groups is not None and batch.segments is not None
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 4, 4, 5, 0, 1, 2, 3, 2]]
    assert batch.groups.tolist() == [0] * 10 + [1] * 5
    assert batch.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 0, 0, 1, 1, 2]
    assert batch.keep.tolist() == [3, 4, 5, 3, 3, 8, 11, 12, 11]
    assert batch.targets.tolist() == [9, 10, 11, 12, 13, 14, 20, 21, 22]
    assert batch.rollout.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 4]
    assert batch.advantages.tolist() == [0, 0, 0, 1, 2, 2, 0, 0, 1]
    assert batch.weights.tolist() == pytest.approx([0.5 / 3] * 3 + [0.5] + [0.25] * 4 + [0.5])


def test_a_plain_batch_by_hand():
    batch = plain_micro_batch(TWO[0])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 12, 5, 5], [5, 6, 7, 8, 13, 14, 5]]
    assert batch.keep.tolist() == [3, 4, 5]
    assert batch.select.tolist() == [0, 1, 2, 3, 6, 7]
    assert batch.targets.tolist() == [9, 10, 11, 12, 13, 14]
    assert attention_mask(batch, "sdpa", torch.float32) is None


def test_a_completion_sees_its_prompt_and_itself():
    batch = packed_micro_batch((unit((1, 2), (3, 4), (5,)), unit((6,), (7,))))
    mask = attention_mask(batch, "sdpa", torch.float32)[0, 0]
    assert (mask == 0).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]


@torch.no_grad()
def _logprobs(model, batch, attention="sdpa"):
    output = model(
        input_ids=batch.token_ids,
        position_ids=batch.positions,
        attention_mask=attention_mask(batch, attention, torch.float32),
        logits_to_keep=batch.keep,
    )
    return token_logprobs(output.logits.flatten(0, 1)[batch.select], batch.targets, 1.0)[0]


def _alone(model):
    return torch.cat([_logprobs(model, plain_micro_batch(Unit((r,)))) for u in TWO for r in u.rollouts])


def test_log_probabilities_in_any_packing_are_those_of_the_sequence_alone(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    alone = _alone(model)
    assert torch.allclose(_logprobs(model, packed_micro_batch(TWO)), alone, atol=1e-4)
    assert torch.allclose(torch.cat([_logprobs(model, plain_micro_batch(u)) for u in TWO]), alone, atol=1e-4)


def test_flex_attention_sees_what_the_explicit_mask_shows(tiny_model):
    """On a CPU it has a forward pass only; the backward pass needs a GPU."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    alone = _alone(model)
    model.set_attn_implementation("flex_attention")
    assert torch.allclose(_logprobs(model, packed_micro_batch(TWO), "flex_attention"), alone, atol=1e-4)


@pytest.mark.parametrize("packed", [True, False])
def test_a_filler_weighs_nothing(packed):
    batch = filler(7, packed=packed)
    assert batch.is_filler and not batch.weights.any() and batch.token_ids.tolist() == [[7, 7]]
