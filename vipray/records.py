"""Records that cross actors: frozen values and Arrow schemas.

Every rollout is known by `RolloutId(step, prompt_id, k)`, whatever generator makes it and however often it is
tried. A rollout travels as a one-row Arrow record batch with `ROLLOUT_SCHEMA`, from the generator over the
verifier to the learner and into the log on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

from vipray.allocation.policies import POLICIES
from vipray.arrays import FloatArray, IntArray


class RolloutId(NamedTuple):
    """Identity of one rollout: the `k`-th of its prompt in its step, with `0 <= k < n[prompt_id]`."""

    step: int
    prompt_id: str
    k: int


class Outcome(StrEnum):
    """What verification found. Only `CORRECT` and `WRONG` are evidence for the predictor."""

    CORRECT = "correct"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNSCORABLE = "unscorable"

    @property
    def is_evidence(self) -> bool:
        """Whether the outcome says something about the policy's success probability."""
        return self in (Outcome.CORRECT, Outcome.WRONG)


ROLLOUT_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("k", pa.int32(), nullable=False),
        pa.field("generator_id", pa.string(), nullable=False),
        pa.field("policy_version_first", pa.int64(), nullable=False),  # version that sampled the first token
        pa.field("policy_version_last", pa.int64(), nullable=False),  # version that sampled the last token
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),  # of the distribution sampled from
        pa.field("policy_versions", pa.list_(pa.int64())),  # version that sampled each token
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("latency_s", pa.float32(), nullable=False),
        pa.field("reward", pa.float32()),  # null until verified
        pa.field("outcome", pa.string()),  # null until verified; an `Outcome`
        pa.field("extracted", pa.string()),  # what the verifier took for the answer
        pa.field("reason", pa.string()),  # why it was not paid, where that needs saying
    ]
)

ALLOCATION_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("success_prob", pa.float64(), nullable=False),  # predicted before any rollout
        pa.field("gradient_variance", pa.float64(), nullable=False),  # E[4 p (1-p)] under the posterior
        pa.field("prompt_weight", pa.float64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("successes", pa.int64(), nullable=False),
        pa.field("trials", pa.int64(), nullable=False),  # rollouts whose outcome is evidence
        # what each other policy would have given; null for the one that gave `n`
        *(pa.field(f"n_{policy}", pa.int64()) for policy in POLICIES),
    ]
)

EVALUATION_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),  # optimiser steps taken before the evaluation
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("successes", pa.int64(), nullable=False),
        pa.field("trials", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Span:
    """A stretch of wall-clock time, in seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s

    def overlap_s(self, other: Span) -> float:
        """Seconds that lie in both spans."""
        return max(0.0, min(self.end_s, other.end_s) - max(self.start_s, other.start_s))


@dataclass(frozen=True)
class TimelineSpan:
    """What an actor did from when to when, in seconds since the epoch.

    Attributes:
        actor: who, e.g. `generator-3`.
        role: what it is: generator, verifier, learner, predictor, allocator or controller.
        name: what it did: generate, load_weights, verify, train, publish, observe, predict, allocate, …; `lost` ends
            the actor's presence.
        start_s: when it began.
        end_s: when it ended, not before `start_s`.
        step: the step that it was for, where it was for one.
        version: the policy version that it was about, where it was about one.
    """

    actor: str
    role: str
    name: str
    start_s: float
    end_s: float
    step: int | None = None
    version: int | None = None


@dataclass(frozen=True)
class Recovery:
    """How a loss was made good. Times are in seconds since the epoch.

    Attributes:
        kind: what was lost: generator, verifier, predictor, allocator, writer, learner, object or driver.
        actor: which one, e.g. `generator-3`.
        cause: how that showed, in a line.
        lost_at_s: when it was found out.
        reissued_at_s: when what it had not finished was given to somebody again.
        serving_at_s: when its replacement served; None: not yet, or there is none.
        num_reissued: rollouts that are made again.
    """

    kind: str
    actor: str
    cause: str
    lost_at_s: float
    reissued_at_s: float
    serving_at_s: float | None
    num_reissued: int = 0


@dataclass(frozen=True)
class Prediction:
    """What a predictor says of a batch, before any rollout.

    Attributes:
        prompt_ids: [B] distinct prompts.
        success_prob: [B] in [0, 1].
        gradient_variance: [B] `E[4 p (1 - p)]` in [0, 1] under the posterior.
        span: when the predictor worked on it.
        metrics: figures about the predictor itself, by name.
    """

    prompt_ids: tuple[str, ...]
    success_prob: FloatArray
    gradient_variance: FloatArray
    span: Span
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """How many rollouts each prompt of a step gets, and what that was based on.

    Attributes:
        step: the step that it is for.
        prompt_ids: [B] distinct prompts.
        n: [B] int64 rollouts, summing to the budget exactly.
        prompt_weight: [B] weights of the prompts' terms in the loss, which `n` is optimal for.
        success_prob: [B] prediction that it was made from.
        gradient_variance: [B] prediction that it was made from.
        span: when the allocator worked on it.
        shadow: by policy, the [B] rollouts that each other one would have given.
        dropped: rollouts that were not waited for; `n` counts them all the same.
    """

    step: int
    prompt_ids: tuple[str, ...]
    n: IntArray
    prompt_weight: FloatArray
    success_prob: FloatArray
    gradient_variance: FloatArray
    span: Span
    shadow: dict[str, IntArray] = field(default_factory=dict)
    dropped: frozenset[RolloutId] = frozenset()

    def rollout_ids(self) -> list[RolloutId]:
        """Every rollout of the step's batch, prompt by prompt."""
        pairs = zip(self.prompt_ids, self.n.tolist(), strict=True)
        ids = [RolloutId(self.step, prompt_id, k) for prompt_id, n in pairs for k in range(n)]
        return [rollout_id for rollout_id in ids if rollout_id not in self.dropped]

    def weight_of(self) -> dict[str, float]:
        """`prompt_weight` by prompt id."""
        return dict(zip(self.prompt_ids, self.prompt_weight.tolist(), strict=True))


def set_aside_row(rollout_id: RolloutId, reason: str) -> pa.RecordBatch:
    """What the log says of a rollout that was never finished: outcome `error`, no tokens, version -1."""
    row = {
        **rollout_id._asdict(),
        "generator_id": "",
        "policy_version_first": -1,
        "policy_version_last": -1,
        "prompt_token_ids": [],
        "completion_token_ids": [],
        "logprobs": [],
        "policy_versions": [],
        "finish_reason": "error",
        "text": "",
        "latency_s": 0.0,
        "reward": 0.0,
        "outcome": str(Outcome.ERROR),
        "extracted": "",
        "reason": reason,
    }
    return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)


@dataclass(frozen=True)
class RolloutReceipt:
    """A finished rollout as the controller sees it before it is verified.

    Attributes:
        rollout_id: the rollout.
        generator_id: who made it.
        num_tokens: of the completion.
        policy_version_first: version that sampled its first token.
        span: when the generator had it.
    """

    rollout_id: RolloutId
    generator_id: str
    num_tokens: int
    policy_version_first: int
    span: Span


@dataclass(frozen=True)
class Verdict:
    """A verified rollout as the controller sees it: no tokens, no text.

    Attributes:
        rollout_id: the rollout.
        reward: in [0, 1].
        outcome: what verification found.
        num_tokens: of the completion.
        policy_version: version that sampled its first token.
        span: when the verifier had it, its queue included.
    """

    rollout_id: RolloutId
    reward: float
    outcome: Outcome
    num_tokens: int
    policy_version: int
    span: Span


@dataclass(frozen=True)
class TensorPiece:
    """A stretch of a tensor's bytes: `nbytes` of them at `offset` of chunk number `chunk`."""

    chunk: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a published version. Its pieces, one for each rank that holds rows of it, are in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]


@dataclass(frozen=True)
class WeightManifest:
    """Table of contents of one published policy version: flat byte chunks and the tensors in them.

    Attributes:
        version: the policy version; -1 for a plan that no version was published by yet.
        entries: every tensor, in the order of the model's layers.
        chunk_nbytes: size of each chunk. Chunk `group * num_ranks + rank` holds the rows that rank `rank` has of the
            tensors of group `group`.
        num_ranks: ranks that publish; as many chunks in a row hold whole tensors.
    """

    version: int
    entries: tuple[TensorEntry, ...]
    chunk_nbytes: tuple[int, ...]
    num_ranks: int = 1

    @property
    def num_groups(self) -> int:
        """Groups of chunks, which is also the number of chunks that each rank publishes."""
        return len(self.chunk_nbytes) // self.num_ranks

    def chunks_of(self, group: int) -> range:
        """Numbers of the chunks of a group, rank by rank."""
        return range(group * self.num_ranks, (group + 1) * self.num_ranks)

    def entries_of(self, group: int) -> tuple[TensorEntry, ...]:
        """The tensors that lie in the chunks of a group."""
        return tuple(entry for entry in self.entries if entry.pieces[0].chunk // self.num_ranks == group)
