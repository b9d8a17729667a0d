"""The verifier actor: what it writes into a rollout, and what a hung answer costs, on real workers and on Ray."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from actors.verifier import VerifierActor
from tests.actors.fakes import EqualityVerifier
from tests.verifiers.hostile import build
from vipray.data.prompts import PROMPT_SCHEMA, Prompt, PromptSet
from vipray.errors import ConfigError
from vipray.records import ROLLOUT_SCHEMA, RolloutId, Verdict
from vipray.verifiers.workers import VerifierPool

_PROMPTS = [Prompt("p0", "t", 0, "2 * 40?", "80", verifier="hostile"), Prompt("p1", "t", 1, "?", "7", verifier="other")]
PROMPTS = PromptSet(
    pa.Table.from_pylist([{**vars(prompt), "token_ids": [1, 2]} for prompt in _PROMPTS], schema=PROMPT_SCHEMA)
)
pool_of = functools.partial(VerifierPool, build, num_workers=2, answer_timeout_s=3.0, memory_mib=256)


def rollout(text: str, k: int = 0, prompt_id: str = "p0") -> pa.RecordBatch:
    row = {
        "step": 3, "prompt_id": prompt_id, "k": k, "generator_id": "g", "policy_version_first": 2,
        "policy_version_last": 3, "prompt_token_ids": [1, 2], "completion_token_ids": [4, 5, 6],
        "logprobs": [-0.1] * 3, "finish_reason": "stop", "text": text, "latency_s": 0.5,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)


@pytest.fixture
async def actor():
    actor = VerifierActor(lambda names: pool_of(tuple(names)), PROMPTS.table)
    await actor.ready()
    yield actor
    await actor.shutdown()


async def test_a_score_fills_the_rollout_in_and_changes_nothing_else(actor):
    scored, verdict = await actor.score(rollout("80"))
    (row,), (before,) = scored.to_pylist(), rollout("80").to_pylist()
    assert row == before | {"reward": 1.0, "outcome": "correct", "extracted": "80", "reason": ""}
    rest = {"num_tokens": 3, "policy_version": 2, "span": verdict.span}
    assert verdict == Verdict(RolloutId(3, "p0", 0), 1.0, verdict.outcome, **rest)
    assert 0 < verdict.span.duration_s < 10
    assert verdict.outcome.is_evidence


async def test_a_hung_and_a_crashed_answer_hold_nobody_else_up(actor):
    texts = ["hang", "80", "exit 1", "80", "81"]
    start = time.monotonic()
    scored = await asyncio.gather(*(actor.score(rollout(text, k)) for k, text in enumerate(texts)))
    assert time.monotonic() - start < 20
    rows = [batch.to_pylist()[0] for batch, _ in scored]
    assert [row["outcome"] for row in rows] == ["timeout", "correct", "error", "correct", "wrong"]
    assert [row["k"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["reason"] == "no verdict within 3 s"
    assert [verdict.reward for _, verdict in scored] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert [verdict.outcome.is_evidence for _, verdict in scored] == [False, True, False, True, True]
    assert actor.metrics()["verifiers/timeout"] == actor.metrics()["verifiers/error"] == 1


async def test_workers_build_the_verifiers_that_the_prompts_name():
    asked: list[Any] = []

    def pool(names):
        asked.extend(names)
        return EqualityVerifier(names)

    actor = VerifierActor(pool, PROMPTS.table)
    await actor.ready()
    assert asked == ["hostile", "other"]
    scored, _ = await actor.score(rollout("7", prompt_id="p1"))
    assert scored.to_pylist()[0]["outcome"] == "correct"


async def test_a_verifier_that_cannot_be_built_keeps_the_actor_from_being_ready():
    actor = VerifierActor(lambda _: pool_of(("unknown",)), PROMPTS.table)
    with pytest.raises(ConfigError, match="unknown verifier 'unknown'"):
        await actor.ready()
    await actor.shutdown()


async def test_text_that_arrow_cannot_hold_is_mended():
    def pool(names):
        return SurrogateVerifier(names)

    scored, _ = await VerifierActor(pool, PROMPTS.table).score(rollout("7", prompt_id="p1"))
    assert scored.to_pylist()[0]["extracted"] == "7?"


class SurrogateVerifier(EqualityVerifier):
    def submit(self, prompt, completion):
        return super().submit(prompt, completion + "\ud800")


@pytest.mark.ray
async def test_on_ray_a_hung_answer_is_a_timeout_and_a_killed_actor_leaves_no_worker(tmp_path):
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        remote: Any = ray.remote
        actor = remote(concurrency_groups={"health": 1})(VerifierActor)
        handle = actor.options(num_cpus=0).remote(_pool, PROMPTS.table)
        await asyncio.wait_for(handle.ready.remote(), 60)
        asked = [handle.score.remote(rollout(text, k)) for k, text in enumerate(["power", "80", "80"])]
        verdicts = [verdict for _, verdict in await asyncio.wait_for(asyncio.gather(*asked), 60)]
        assert [verdict.outcome for verdict in verdicts] == ["timeout", "correct", "correct"]

        path = tmp_path / "pids"
        hung = handle.score.remote(rollout(f"family {path}"))
        while not Path(f"{path}.done").exists():
            await asyncio.sleep(0.05)
        below = [psutil.Process(int(pid)) for pid in Path(f"{path}.done").read_text().split()]
        os.kill(await handle.__ray_call__.remote(lambda _self: os.getpid()), signal.SIGKILL)
        _, left = psutil.wait_procs(below, timeout=10)
        assert len(below) == 3 and not left
        del hung
    finally:
        ray.shutdown()


def _pool(names):
    return VerifierPool(build, tuple(names), num_workers=1, answer_timeout_s=5.0, memory_mib=256)
