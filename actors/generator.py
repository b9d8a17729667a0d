"""The generator actor: one engine, rollouts streamed out one by one as each ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pyarrow as pa

from vipray.arrays import ByteArray
from vipray.data.prompts import PromptSet
from vipray.inference.protocol import Completion, Engine
from vipray.records import ROLLOUT_SCHEMA, RolloutId, WeightManifest


class GeneratorActor:
    """Serves rollouts at the policy version that its engine has confirmed.

    Args:
        generator_id: name in the rollout rows.
        build_engine: makes the engine, in the actor's own process.
        prompts: table of the prompt set.
    """

    def __init__(
        self,
        generator_id: str,
        build_engine: Callable[[], Engine],
        prompts: pa.Table,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generator_id = generator_id
        self._engine = build_engine()
        self._prompts = PromptSet(prompts)
        self._clock = clock

    async def ready(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def load_weights(self, manifest: WeightManifest, *chunks: ByteArray) -> int:
        """Take a published version; return it once the engine has confirmed it."""
        return await self._engine.load_weights(manifest, chunks)

    async def generate(self, rollout_ids: Sequence[RolloutId]) -> AsyncIterator[pa.RecordBatch]:
        """Make the rollouts all at once and yield a one-row record batch as each of them ends."""
        tasks = [asyncio.create_task(self._rollout(rollout_id)) for rollout_id in rollout_ids]
        try:
            for finished in asyncio.as_completed(tasks):
                yield await finished
        finally:
            for task in tasks:
                task.cancel()

    async def shutdown(self) -> None:
        """End the engine and its processes."""
        await self._engine.shutdown()

    async def _rollout(self, rollout_id: RolloutId) -> pa.RecordBatch:
        start = self._clock()
        prompt_token_ids = self._prompts.token_ids(rollout_id.prompt_id)
        completion = await self._engine.generate(rollout_id, prompt_token_ids)
        return _row(rollout_id, self._generator_id, prompt_token_ids, completion, self._clock() - start)


def _row(
    rollout_id: RolloutId, generator_id: str, prompt_token_ids: list[int], completion: Completion, latency_s: float
) -> pa.RecordBatch:
    row = {
        **rollout_id._asdict(),
        "generator_id": generator_id,
        "policy_version_first": completion.policy_version_first,
        "policy_version_last": completion.policy_version_last,
        "prompt_token_ids": prompt_token_ids,
        "completion_token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "text": completion.text,
        "latency_s": latency_s,
    }
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)
