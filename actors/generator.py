"""The generator actor: one engine that makes as many rollouts at once as it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import ray

from vipray.arrays import ByteArray
from vipray.data.prompts import PromptSet
from vipray.inference.protocol import Completion, Engine
from vipray.records import ROLLOUT_SCHEMA, RolloutId, RolloutReceipt, Span, WeightManifest


class GeneratorActor:
    """Serves rollouts at the policy version that its engine has confirmed.

    Args:
        generator_id: name in the rollout rows.
        build_engine: makes the engine, in the actor's own process; a scripted one answers by the prompts.
        prompts: table of the prompt set.
    """

    def __init__(
        self,
        generator_id: str,
        build_engine: Callable[[PromptSet], Engine],
        prompts: pa.Table,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._generator_id = generator_id
        self._prompts = PromptSet(prompts)
        self._engine = build_engine(self._prompts)
        self._clock = clock
        self._version = -1  # confirmed

    @ray.method(concurrency_group="health")
    async def health(self) -> None:
        """Answer, beside whatever else is under way."""

    async def ready(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def load_weights(self, manifest: WeightManifest, *chunks: ByteArray) -> tuple[int, Span]:
        """Take a published version; return it once the engine has confirmed it, and how long that took."""
        start = self._clock()
        self._version = await self._engine.load_weights(manifest, chunks)
        return self._version, Span(start, self._clock())

    async def generate(self, rollout_id: RolloutId) -> tuple[pa.RecordBatch, RolloutReceipt]:
        """Make a rollout; return it as a one-row record batch, and what the controller needs to know of it."""
        start = self._clock()
        prompt_token_ids = self._prompts.token_ids(rollout_id.prompt_id)
        completion = await self._engine.generate(rollout_id, prompt_token_ids)
        span = Span(start, self._clock())
        versions = completion.policy_versions or (self._version,)  # an empty completion has none of its own
        row = _row(rollout_id, self._generator_id, prompt_token_ids, completion, versions, span.duration_s)
        first = versions[0]
        return row, RolloutReceipt(rollout_id, self._generator_id, len(completion.token_ids), first, span)

    async def shutdown(self) -> None:
        """End the engine and its processes."""
        await self._engine.shutdown()


def _row(
    rollout_id: RolloutId,
    generator_id: str,
    prompt_token_ids: list[int],
    completion: Completion,
    versions: tuple[int, ...],
    latency_s: float,
) -> pa.RecordBatch:
    row = {
        **rollout_id._asdict(),
        "generator_id": generator_id,
        "policy_version_first": versions[0],
        "policy_version_last": versions[-1],
        "policy_versions": completion.policy_versions,
        "prompt_token_ids": prompt_token_ids,
        "completion_token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "text": completion.text,
        "latency_s": latency_s,
    }
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)
