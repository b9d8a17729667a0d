from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from vipray.learner.loss import clipped_policy_loss, token_logprobs
from vipray.learner.packing import TrainingRollout, block_mask, can_pack, pack_group, share_rows

PROMPT = (5, 6, 7, 8)


def rollout(tokens, advantage=1.0, weight=0.25):
    return TrainingRollout(PROMPT, tuple(tokens), tuple(-0.5 - 0.1 * k for k in range(len(tokens))), advantage, weight)


GROUP = [rollout((9, 10, 11), 1.0), rollout((12,), -0.5), rollout((13, 14), -0.5)]


def test_a_packed_row_by_hand():
    (row,) = pack_group(GROUP, max_row_tokens=100, length_norm="sequence")
    assert row.token_ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 13, 14, 12]  # longest first
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5, 4]
    assert row.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert row.predictors.tolist() == [3, 4, 5, 3, 7, 3]
    assert row.targets.tolist() == [9, 10, 11, 13, 14, 12]
    assert row.weights.tolist() == pytest.approx([0.25 / 3] * 3 + [0.125] * 2 + [0.25])
    (plain,) = pack_group(GROUP, max_row_tokens=100, length_norm="none")
    assert plain.weights.tolist() == [0.25] * 6


def test_a_completion_sees_the_prompt_and_itself():
    mask = block_mask(torch.tensor([0, 0, 1, 1, 2]), torch.float32)[0, 0]
    assert (mask == 0).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(5, 40))
def test_splitting_a_group_loses_no_token_and_no_weight(lengths, max_row_tokens):
    group = [rollout(range(length), advantage=float(length)) for length in lengths]
    rows = pack_group(group, max_row_tokens=max_row_tokens, length_norm="sequence")
    assert sum(len(row.targets) for row in rows) == sum(lengths)
    assert sum(float(row.weights.sum()) for row in rows) == pytest.approx(0.25 * len(lengths), rel=1e-5)
    for row in rows:
        assert row.token_ids[: len(PROMPT)].tolist() == list(PROMPT)
        assert row.cost <= max_row_tokens or int(row.segments.max()) == 1


def test_a_group_with_two_prompts_is_refused():
    stranger = TrainingRollout((1,), (2,), (-1.0,), 0.0, 1.0)
    with pytest.raises(ValueError, match="share their prompt"):
        pack_group([GROUP[0], stranger], max_row_tokens=100, length_norm="none")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 5))
def test_rows_are_shared_evenly_and_completely(lengths, num_ranks):
    rows = [pack_group([rollout(range(n))], max_row_tokens=100, length_norm="none")[0] for n in lengths]
    shares = share_rows(rows, num_ranks)
    assert sorted(id(row) for share in shares for row in share) == sorted(id(row) for row in rows)
    loads = [sum(row.cost for row in share) for share in shares]
    assert max(loads) - min(loads) <= max(row.cost for row in rows)


def _gradients(model, rows, packed):
    model.zero_grad()
    logprobs = []
    for row in rows:
        output = model(
            input_ids=row.token_ids[None],
            position_ids=row.positions[None],
            attention_mask=block_mask(row.segments, torch.float32) if packed else None,
            logits_to_keep=row.predictors,
        )
        values = token_logprobs(output.logits[0], row.targets, 1.0)
        clipped_policy_loss(values, row, clip_low=0.2, clip_high=0.28).loss.backward()
        logprobs.append(values.detach())
    return torch.cat(logprobs), torch.cat([p.grad.flatten() for p in model.parameters()])


def test_packing_changes_neither_log_probabilities_nor_gradients(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    packed = _gradients(model, pack_group(GROUP, max_row_tokens=100, length_norm="sequence"), packed=True)
    rows = pack_group(GROUP, max_row_tokens=100, length_norm="sequence", packed=False)
    assert len(rows) == 3
    plain = _gradients(model, rows, packed=False)
    assert torch.allclose(packed[0], plain[0], atol=1e-4)
    assert float((packed[1] - plain[1]).norm() / plain[1].norm()) < 1e-4


def test_only_models_with_full_attention_everywhere_are_packed():
    assert can_pack(LlamaConfig())
    sliding = Qwen3Config(num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    assert not can_pack(sliding)


def test_the_clipped_loss_by_hand():
    (row,) = pack_group([rollout((1, 2), 2.0), rollout((3,), -1.0)], max_row_tokens=9, length_norm="sequence")
    ratio = torch.tensor([1.5, 0.9, 0.5])
    terms = clipped_policy_loss(row.old_logprobs + torch.log(ratio), row, clip_low=0.2, clip_high=0.28)
    # min(1.5, 1.28) 2 / 2 and 0.9 · 2 / 2 for the first, min(-0.5, -0.8) for the second; each weighs 0.25
    assert float(terms.loss) == pytest.approx(-0.25 * (1.28 + 0.9 - 0.8), rel=1e-5)
    assert terms.num_clipped == 2 and terms.num_tokens == 3
    assert terms.max_logprob_difference == pytest.approx(0.6931, rel=1e-3)


def test_log_probabilities_are_those_of_the_tempered_distribution():
    logits, targets = torch.randn(4, 7), torch.tensor([0, 3, 6, 2])
    expected = torch.log_softmax(logits / 0.7, -1)[torch.arange(4), targets]
    assert torch.allclose(token_logprobs(logits, targets, 0.7), expected, atol=1e-6)
