"""The precision benchmark at a tiny size, on a real engine."""

from __future__ import annotations

import json

import pytest

from jobs.bench import precision
from tests.jobs.support import overrides

pytestmark = pytest.mark.vllm


def test_modes_are_compared_on_one_engine(tiny_model, tmp_path):
    modes = ["bf16, stochastic; bf16 learner", "bf16, nearest; fp32 learner"]
    settings = [*overrides(tiny_model, tmp_path), "learner.threads=1"]
    result = precision.benchmark(modes, [1e-3], [0, 1], steps=2, overrides=settings)
    assert not result.failures
    assert [(run.mode, run.seed) for run in result.runs] == [(mode, seed) for mode in modes for seed in (0, 1)]
    for run in result.runs:
        assert all(0 < difference < 0.2 for difference in run.difference) and len(run.difference) == 2
        assert all(0 <= reward <= 1 for reward in run.reward) and all(seconds > 0 for seconds in run.step_s)
    assert len(json.loads(json.dumps(result.as_json()))["runs"]) == 4
    assert [column.header for column in result.table().columns][:3] == ["learning rate", "mode", "seeds"]
    assert result.table().row_count == 2
