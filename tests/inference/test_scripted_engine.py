from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vipray.errors import WeightSyncError
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.records import RolloutId, TensorEntry, TensorPiece, WeightManifest

SCRIPT = Script(success_prob={"a": 0.3, "b": 1.0}, answer={"a": "42", "b": "7"}, seed=3)
MANIFEST = WeightManifest(5, (TensorEntry("w", "uint8", (2,), (TensorPiece(0, 0, 2),)),), (2,))
CHUNKS = [np.zeros(2, np.uint8)]


async def engine(version=5, script=SCRIPT):
    result = ScriptedEngine(script)
    await result.load_weights(replace(MANIFEST, version=version), CHUNKS)
    return result


async def test_any_engine_gives_the_same_answer_in_any_order():
    first, second = await engine(), await engine()
    ids = [RolloutId(0, "a", k) for k in range(20)]
    forward = [await first.generate(rollout_id, [1]) for rollout_id in ids]
    backward = [await second.generate(rollout_id, [1]) for rollout_id in reversed(ids)]
    assert forward == backward[::-1]
    other = [await (await engine(version=6)).generate(rollout_id, [1]) for rollout_id in ids]
    assert [c.text for c in other] != [c.text for c in forward]


async def test_successes_come_with_the_given_probability():
    scripted = await engine()
    texts = [(await scripted.generate(RolloutId(0, "a", k), [1])).text for k in range(2000)]
    assert np.mean([text == "42" for text in texts]) == pytest.approx(0.3, abs=0.04)
    assert (await scripted.generate(RolloutId(0, "b", 0), [1])).text == "7"


async def test_it_serves_nothing_before_it_has_weights_and_refuses_torn_ones():
    fresh = ScriptedEngine(SCRIPT)
    with pytest.raises(WeightSyncError, match="confirmed no weights"):
        await fresh.generate(RolloutId(0, "a", 0), [1])
    with pytest.raises(WeightSyncError, match="version 5"):
        await fresh.load_weights(MANIFEST, [np.zeros(1, np.uint8)])


async def test_lengths_and_failures_are_given():
    script = replace(
        SCRIPT,
        num_tokens=lambda rollout_id: 3 + rollout_id.k,
        failure=lambda rollout_id: OSError("lost") if rollout_id.k == 2 else None,
    )
    scripted = await engine(script=script)
    for k in (0, 9):
        completion = await scripted.generate(RolloutId(0, "b", k), [1])
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.policy_versions) == 3 + k
        assert completion.text == "7" and completion.token_ids[0] == ord("7")
    with pytest.raises(OSError, match="lost"):
        await scripted.generate(RolloutId(0, "b", 2), [1])
