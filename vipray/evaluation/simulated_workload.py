"""Work for simulated generators: prompts with success probabilities and lengths, batches with the real allocation.

    tokens of rollout k of prompt q = min(median · exp(between · u_q + within · u_qk), longest · median),   u ~ N(0, 1)

They are not rounded, so that any median will do. `between` is what a prompt's earlier lengths can tell, `within` is
what nobody can know before. Tasks differ too: half of the variance of u_q is its task's. What a rollout's length is
depends on its id and the seed alone, so that whoever makes it in whatever order takes the same time.

Legend: Q prompts, B prompts of a batch, C budget, L and U bounds, n counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vipray.allocation.policies import allocate_by_policy
from vipray.arrays import FloatArray, IntArray
from vipray.records import RolloutId

_NUM_TASKS = 8
_LOGIT_SPREAD = 2.0  # of success over prompts; harder prompts have longer answers
_PREDICTION_ERROR = 1.0  # of the predictor, in logits
_SHORTEST = 0.01  # in medians
_HARDER_IS_LONGER = 0.5  # correlation of a prompt's length with its difficulty


@dataclass(frozen=True)
class WorkloadSettings:
    """What is to be generated.

    Attributes:
        num_prompts: Q.
        prompts_per_batch: B <= Q; an epoch visits every prompt once.
        rollout_budget: C.
        lower: L.
        upper: U.
        policy: of allocation.
        estimator: of advantages.
        median_tokens: of all completions.
        longest: largest length in medians; longer ones are cut, as by `sampling.max_tokens`.
        between: standard deviation of the logarithm of lengths over prompts.
        within: the same among rollouts of one prompt.
        seed: of everything that is drawn.
    """

    num_prompts: int
    prompts_per_batch: int
    rollout_budget: int
    lower: int = 3
    upper: int = 32
    policy: str = "vip"
    estimator: str = "rloo"
    median_tokens: float = 100.0
    longest: float = 20.0
    between: float = 1.1
    within: float = 0.3
    seed: int = 0

    @property
    def max_tokens(self) -> float:
        """Length at which completions are cut."""
        return self.longest * self.median_tokens


@dataclass(frozen=True)
class StepWork:
    """The rollouts of a step, prompt after prompt, and how many tokens each will turn out to have."""

    step: int
    rollout_ids: tuple[RolloutId, ...]
    tokens: Mapping[RolloutId, float]

    def lower_bound(self, num_slots: int, num_generators: int) -> float:
        """Shortest possible makespan: max(total work / slots of all generators, longest single rollout)."""
        lengths = list(self.tokens.values())
        return max(math.fsum(lengths) / (num_slots * num_generators), max(lengths))


class Workload:
    """Prompts, and the steps that train on them in order."""

    def __init__(self, settings: WorkloadSettings) -> None:
        self.settings = settings
        rng = np.random.default_rng([settings.seed, 0])
        size = settings.num_prompts
        task = rng.integers(_NUM_TASKS, size=size)
        hardness = _mixed(rng.normal(size=_NUM_TASKS)[task], rng.normal(size=size), math.sqrt(0.5))
        own = _mixed(rng.normal(size=_NUM_TASKS)[task], rng.normal(size=size), math.sqrt(0.5))
        self._prompt_ids = np.array([f"prompt{row}" for row in range(size)])
        self.task_of = {prompt_id: f"task{t}" for prompt_id, t in zip(self._prompt_ids.tolist(), task, strict=True)}
        self._logit = -_LOGIT_SPREAD * hardness
        log_length = settings.between * _mixed(hardness, own, _HARDER_IS_LONGER)
        self._log_length = log_length - np.median(log_length)  # a few tasks do not average out
        self._order = np.zeros(0, dtype=np.int64)
        self._epoch = 0

    def step(self, step: int) -> StepWork:
        """The next step's work; to be asked for in order."""
        settings = self.settings
        rows = self._next_rows()
        rng = np.random.default_rng([settings.seed, 1, step])
        n = self._allocate(rows, rng)
        noise = rng.normal(size=(len(rows), settings.upper))
        lengths = settings.median_tokens * np.exp(self._log_length[rows][:, None] + settings.within * noise)
        lengths = np.clip(lengths, _SHORTEST * settings.median_tokens, settings.max_tokens)
        tokens = {
            RolloutId(step, prompt_id, k): float(lengths[q, k])
            for q, prompt_id in enumerate(self._prompt_ids[rows].tolist())
            for k in range(int(n[q]))
        }
        return StepWork(step, tuple(tokens), tokens)

    def _next_rows(self) -> IntArray:
        size = self.settings.prompts_per_batch
        if len(self._order) < size:
            self._epoch += 1
            rng = np.random.default_rng([self.settings.seed, 2, self._epoch])
            self._order = rng.permutation(self.settings.num_prompts)
        rows, self._order = self._order[:size], self._order[size:]
        return rows

    def _allocate(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        settings = self.settings
        logit = self._logit[rows] + _PREDICTION_ERROR * rng.normal(size=len(rows))
        return allocate_by_policy(
            settings.policy,
            0.5 * (1.0 + np.tanh(0.5 * logit)),
            settings.rollout_budget,
            lower=settings.lower,
            upper=settings.upper,
            estimator=settings.estimator,
        )


def _mixed(shared: FloatArray, own: FloatArray, correlation: float) -> FloatArray:
    """A variable of unit variance that has this correlation with `shared`."""
    return correlation * shared + math.sqrt(1.0 - correlation**2) * own
