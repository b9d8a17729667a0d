"""What a generator needs of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vipray.arrays import ByteArray
from vipray.records import RolloutId, WeightManifest


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        token_ids: sampled tokens, the end-of-sequence token included.
        logprobs: as long as `token_ids`; natural logarithms under the distribution that was sampled from.
        text: the tokens decoded, for verification and the log only.
        finish_reason: `stop` or `length`.
        policy_versions: as long as `token_ids`; version that sampled each token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    policy_versions: tuple[int, ...]


class Engine(Protocol):
    """Samples completions at a policy version that it has confirmed."""

    async def start(self) -> None:
        """Bring the engine up. It holds no policy version yet."""

    async def generate(self, rollout_id: RolloutId, prompt_token_ids: Sequence[int]) -> Completion:
        """Sample one completion.

        Raises:
            WeightSyncError: no version was loaded yet.
            RolloutAbortedError: new weights came in its midst, and it was not kept.
        """

    async def load_weights(self, manifest: WeightManifest, chunks: Sequence[ByteArray]) -> int:
        """Take a published version and return it once the engine has confirmed it."""

    async def shutdown(self) -> None:
        """End the engine and all of its processes."""
