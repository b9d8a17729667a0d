"""The scripted engines of a run answer alike, right as often as their prompt says, with a long tail of latencies."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pyarrow as pa
import pytest

from vipray.config import ScriptedConfig
from vipray.data.prompts import PROMPT_SCHEMA, PromptSet
from vipray.inference import scripted_build
from vipray.inference.scripted_build import LONGEST_IN_MEDIANS, scripted_engine
from vipray.records import RolloutId, WeightManifest

INSTANT = ScriptedConfig(latency_s=0.0)


def prompt_set(num_prompts):
    rows = [
        {
            "prompt_id": f"p{index}",
            "task": "task",
            "index": index,
            "text": "?",
            "answer": str(100 + index),
            "verifier": "exact",
            "aliases": [],
            "token_ids": [1],
        }
        for index in range(num_prompts)
    ]
    return PromptSet(pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA))


def completions(config, num_prompts, num_rollouts, seed=0):
    """All rollouts of step 0, by a new engine."""

    async def made():
        engine = scripted_engine(config, prompt_set(num_prompts), seed)
        await engine.load_weights(WeightManifest(0, (), ()), [])
        ids = itertools.product([0], [f"p{index}" for index in range(num_prompts)], range(num_rollouts))
        return {RolloutId(*key): await engine.generate(RolloutId(*key), [1]) for key in ids}

    return asyncio.run(made())


def test_engines_of_one_seed_answer_alike_and_those_of_another_differently():
    assert completions(INSTANT, 3, 20) == completions(INSTANT, 3, 20)
    assert completions(INSTANT, 3, 20) != completions(INSTANT, 3, 20, seed=1)


def test_success_is_spread_over_the_prompts_within_its_bounds():
    config = ScriptedConfig(success_prob_low=0.2, success_prob_high=0.8, latency_s=0.0)
    made = completions(config, 40, 100)
    right = np.array([[made[RolloutId(0, f"p{q}", k)].text == str(100 + q) for k in range(100)] for q in range(40)])
    rates = right.mean(axis=1)
    assert rates.mean() == pytest.approx(0.5, abs=0.1)
    assert rates.min() > 0.05 and rates.max() < 0.95
    assert np.ptp(rates) > 0.3


def test_completions_have_the_length_that_is_asked_for():
    made = completions(ScriptedConfig(latency_s=0.0, num_tokens=5), 2, 3)
    assert {len(completion.token_ids) for completion in made.values()} == {5}


def test_latencies_have_their_median_and_their_longest():
    drawn = np.array([scripted_build._latency_s(0.5, 0, RolloutId(0, "p", k)) for k in range(2000)])
    assert np.median(drawn) == pytest.approx(0.5, rel=0.1)
    assert drawn.max() == 0.5 * LONGEST_IN_MEDIANS and drawn.min() > 0.0
    assert scripted_build._latency_s(0.0, 0, RolloutId(0, "p", 0)) == 0.0
