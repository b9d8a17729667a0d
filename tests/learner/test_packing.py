from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, MambaConfig, MistralConfig, Qwen3Config

from vipray.learner.packing import PackingOptions, TrainingRollout, Unit, plan_rows, why_not_packed


def group(prompt, lengths):
    return [TrainingRollout((prompt,) * 4, (9,) * n, (-1.0,) * n, 1.0, 0.25) for n in lengths]


groups = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=8).map(
    lambda many: [group(prompt, lengths) for prompt, lengths in enumerate(many)]
)
packings = st.builds(PackingOptions, st.booleans(), st.integers(1, 60), st.sampled_from([0.0, 0.1]))


@given(groups, packings, st.integers(1, 4))
def test_every_rollout_is_computed_once_and_every_rank_has_as_many_rows(many, packing, num_ranks):
    plan = plan_rows(many, packing, num_ranks)
    computed = [id(r) for rows in plan.rows for row in rows for unit in row for r in unit.rollouts]
    assert sorted(computed) == sorted(id(rollout) for one in many for rollout in one)
    assert len({len(rows) for rows in plan.rows}) == 1
    for row in (row for rows in plan.rows for row in rows):
        sizes = [packing.tokens(4, unit.lengths) for unit in row]
        assert sum(sizes) <= packing.max_tokens or sum(len(unit.rollouts) for unit in row) <= 1
        assert packing.packed or len(row) <= 1


@given(groups, packings, st.integers(1, 4))
def test_splitting_groups_never_makes_the_slowest_rank_slower(many, packing, num_ranks):
    plan = plan_rows(many, packing, num_ranks)
    loads = [sum(packing.cost(unit) for row in rows for unit in row) for rows in plan.rows]
    assert plan.balance == pytest.approx(sum(loads) / num_ranks / max(loads))
    one_rank = plan_rows(many, packing, 1)
    assert max(loads) <= sum(packing.cost(unit) for row in one_rank.rows[0] for unit in row) + 1e-9


def test_one_rank_computes_every_prompt_once():
    many = [group(prompt, [5] * 8) for prompt in range(4)]
    plan = plan_rows(many, PackingOptions(True, 100), num_ranks=1)
    assert [[len(row) for row in rows] for rows in plan.rows] == [[2, 2]]  # 44 tokens each, two to a row
    assert plan.balance == 1.0


def test_a_single_large_group_is_shared_by_the_ranks():
    plan = plan_rows([group(0, [5] * 16)], PackingOptions(True, 1000), num_ranks=2)
    assert [sum(len(unit.rollouts) for row in rows for unit in row) for rows in plan.rows] == [8, 8]
    assert plan.balance == 1.0


def test_a_rank_with_fewer_rows_cuts_its_own_before_it_gets_fillers():
    many = [group(0, [40]), group(1, [40]), group(2, [6]), group(3, [6]), group(4, [6])]
    plan = plan_rows(many, PackingOptions(True, 44), num_ranks=2)
    assert [len(rows) for rows in plan.rows] == [2, 2]
    assert all(row for rows in plan.rows for row in rows)
    lonely = plan_rows([group(0, [40])], PackingOptions(True, 44), num_ranks=2)
    assert lonely.rows[1] == ((),) and lonely.balance == 0.5


def test_costs_by_hand():
    unit = Unit(tuple(group(0, [3, 2])))
    assert PackingOptions(True, 100).cost(unit) == 9
    assert PackingOptions(False, 100).cost(unit) == 14  # two rows of 4 + 3
    pairs = 4 * 5 / 2 + 3 * 4 + 3 * 4 / 2 + 2 * 4 + 2 * 3 / 2
    assert PackingOptions(True, 100, 0.5).cost(unit) == 9 + 0.5 * pairs


def test_a_group_with_two_prompts_is_refused():
    with pytest.raises(ValueError, match="share their prompt"):
        plan_rows([[*group(0, [1]), *group(1, [2])]], PackingOptions(True, 100))


def test_only_models_with_full_attention_everywhere_are_packed():
    assert why_not_packed(LlamaConfig()) is None
    sliding = Qwen3Config(num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    assert why_not_packed(sliding) == "it has layers of type sliding_attention"
    assert why_not_packed(MambaConfig()) == "it has layers of type linear_attention"
    assert why_not_packed(MistralConfig(sliding_window=512)) is not None
