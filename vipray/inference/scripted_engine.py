"""An engine that answers from given success probabilities: for tests and simulations, never in place of a model.

What it answers is a function of the rollout id, the policy version and a seed, so that any engine, asked in any order,
answers the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vipray.arrays import ByteArray
from vipray.errors import WeightSyncError
from vipray.inference.protocol import Completion
from vipray.records import RolloutId, WeightManifest

_LOGPROB = -1.0  # of every token
_FILLER = 0


@dataclass(frozen=True)
class Script:
    """What a scripted engine does.

    Attributes:
        success_prob: by prompt id; the chance of the right answer.
        answer: by prompt id; the right answer.
        latency_s: by rollout id; how long a rollout takes.
        num_tokens: by rollout id; the length of a completion, the end-of-sequence token included; None: its text's.
        failure: by rollout id; what a rollout ends with instead of a completion, None for nothing.
        seed: of all draws.
    """

    success_prob: Mapping[str, float]
    answer: Mapping[str, str]
    latency_s: Callable[[RolloutId], float] = lambda _: 0.0
    num_tokens: Callable[[RolloutId], int] | None = None
    failure: Callable[[RolloutId], Exception | None] = lambda _: None
    seed: int = 0


class ScriptedEngine:
    """`Engine` that follows a `Script`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._version: int | None = None

    async def start(self) -> None:
        """Nothing to bring up."""

    async def generate(self, rollout_id: RolloutId, prompt_token_ids: Sequence[int]) -> Completion:
        """Answer rightly with the prompt's success probability, else with an answer that is wrong."""
        if self._version is None:
            raise WeightSyncError(f"rollout {rollout_id} was asked of an engine that has confirmed no weights yet")
        first = self._version
        await asyncio.sleep(self._script.latency_s(rollout_id))
        failure = self._script.failure(rollout_id)
        if failure is not None:
            raise failure
        key = hashlib.sha256(repr((self._script.seed, first, tuple(rollout_id))).encode()).digest()
        right = np.random.default_rng(list(key)).random() < self._script.success_prob[rollout_id.prompt_id]
        answer = self._script.answer[rollout_id.prompt_id]
        text = answer if right else f"not {answer}, but 0{answer}1"
        token_ids = tuple(text.encode())
        if self._script.num_tokens is not None:
            length = self._script.num_tokens(rollout_id)
            token_ids = (token_ids + (_FILLER,) * length)[:length]
        versions = (first,) * (len(token_ids) - 1) + (self._version,)  # the last token is sampled at the end
        return Completion(token_ids, (_LOGPROB,) * len(token_ids), text, "stop", versions)

    async def load_weights(self, manifest: WeightManifest, chunks: Sequence[ByteArray]) -> int:
        """Take note of the version."""
        if tuple(len(chunk) for chunk in chunks) != manifest.chunk_nbytes:
            raise WeightSyncError(f"version {manifest.version} came with chunks that are not those of its manifest")
        self._version = manifest.version
        return manifest.version

    async def shutdown(self) -> None:
        """Nothing to end."""
