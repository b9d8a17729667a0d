"""The verifier actor: rollouts in, verdicts out; the scoring is done by worker processes of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa
import ray

from vipray.data.prompts import Prompt, PromptSet
from vipray.records import ROLLOUT_SCHEMA, Outcome, RolloutId, Span, Verdict
from vipray.verifiers.protocol import Score


class Scorer(Protocol):
    """What the actor asks of a verifier pool."""

    ready: Future[None]

    def submit(self, prompt: Prompt, completion: str) -> Future[Score]:
        """Score one completion."""

    def metrics(self) -> dict[str, float]:
        """Counts so far."""

    def close(self) -> None:
        """End what was started."""


class VerifierActor:
    """Scores as many rollouts at once as its pool has workers; the others wait.

    Args:
        build: makes the pool from the names of the verifiers that the prompts ask for.
        prompts: with `PROMPT_SCHEMA`.
    """

    def __init__(
        self,
        build: Callable[[Sequence[str]], Scorer],
        prompts: pa.Table,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._prompts = PromptSet(prompts)
        self._pool = build(sorted(set(self._prompts.table.column("verifier").to_pylist())))

    @ray.method(concurrency_group="health")
    async def health(self) -> None:
        """Answer, beside whatever else is under way."""

    async def ready(self) -> None:
        """Return once a worker is up; raises what keeps it from starting."""
        await asyncio.wrap_future(self._pool.ready)

    async def score(self, rollout: pa.RecordBatch) -> tuple[pa.RecordBatch, Verdict]:
        """Return the rollout with the verifier's findings filled in, and the verdict for the controller."""
        start = self._clock()
        (row,) = rollout.to_pylist()
        score = await asyncio.wrap_future(self._pool.submit(self._prompts.prompt(row["prompt_id"]), row["text"]))
        return self._judged(row, score, start)

    async def set_aside(self, rollout: pa.RecordBatch, reason: str) -> tuple[pa.RecordBatch, Verdict]:
        """Return the rollout with the outcome `error`, without looking at its text."""
        (row,) = rollout.to_pylist()
        return self._judged(row, Score(0.0, Outcome.ERROR, "", reason), self._clock())

    def _judged(self, row: dict[str, Any], score: Score, start: float) -> tuple[pa.RecordBatch, Verdict]:
        row |= {
            "reward": score.reward,
            "outcome": str(score.outcome),
            "extracted": _storable(score.extracted),
            "reason": _storable(score.reason),
        }
        verdict = Verdict(
            rollout_id=RolloutId(row["step"], row["prompt_id"], row["k"]),
            reward=score.reward,
            outcome=Outcome(score.outcome),
            num_tokens=len(row["completion_token_ids"]),
            policy_version=row["policy_version_first"],
            span=Span(start, self._clock()),
        )
        return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA), verdict

    def metrics(self) -> dict[str, float]:
        """Scores by outcome so far, and how many workers had to be replaced."""
        return self._pool.metrics()

    async def shutdown(self) -> None:
        """End all workers."""
        await asyncio.to_thread(self._pool.close)


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which Arrow refuses."""
    return text.encode("utf-8", "replace").decode()
