"""Synthetic logs of pass rates whose success probabilities are known: task types, difficulty levels, drift.

    logit p_qe = ability_t - slope_t (level_q - 3/2) + own_q + e rate_q,      s_qe ~ Binomial(trials, p_qe)

Prompt q belongs to a task type t and to one of four levels, a setting of the generator that made it. Types differ in
how well they are mastered and in how much harder each level is; `own_q` is what no feature of the prompt tells. With
every epoch e of training the logit rises by `rate_q`, save for some prompts that never get better.

The prompts are either mere labels, or questions of reasoning-gym (`REASONING_GYM_MIX`). There the level is given as
parameters of a task: more digits, larger values, more words, more people. It may or may not show in the text's length.

Legend: Q prompts, T task types, E epochs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.exact import allocate
from vipray.arrays import FloatArray, IntArray
from vipray.config import TaskConfig
from vipray.data.tasks import read_tasks
from vipray.evaluation.pass_rate_log import PassRateLog, Visits
from vipray.run_log import write_table

NUM_LEVELS = 4
_ABILITY = (0.0, 1.5)  # mean and standard deviation over types: from hardly ever to nearly always solved
_SLOPE = (0.5, 1.5)  # range over types, in logits a level
OWN_SPREAD = 0.5  # standard deviation over prompts, in logits
_RATE = (0.0, 0.4)  # range over prompts, in logits an epoch
_NEVER = 0.2  # share of the prompts that training does not reach


def _ranges(low: str, high: str, bounds: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    return [{low: a, high: b} for a, b in bounds]


_VALUES = ((2, 20), (21, 200), (201, 2000), (2001, 20000))
_DIGITS = ((1, 1), (2, 2), (3, 3), (4, 4))
REASONING_GYM_MIX: dict[str, list[dict[str, int]]] = {
    "chain_sum": [{"min_terms": 2, "max_terms": 5, **p} for p in _ranges("min_digits", "max_digits", _DIGITS)],
    "products": _ranges("min_digits", "max_digits", _DIGITS),
    "gcd": _ranges("min_value", "max_value", _VALUES),
    "prime_factorization": _ranges("min_value", "max_value", _VALUES),
    "base_conversion": _ranges("min_value", "max_value", _VALUES),
    "letter_counting": _ranges("min_words", "max_words", ((3, 5), (6, 10), (11, 20), (21, 40))),
    "spell_backward": _ranges("min_word_len", "max_word_len", ((3, 4), (5, 6), (7, 8), (9, 10))),
    "word_sorting": _ranges("min_words", "max_words", ((2, 3), (4, 6), (7, 12), (13, 24))),
    "number_sorting": [
        {"min_numbers": 3, "max_numbers": 8, "min_decimals": d, "max_decimals": d} for d in range(NUM_LEVELS)
    ],
    "caesar_cipher": _ranges("min_words", "max_words", ((2, 3), (4, 6), (7, 10), (11, 20))),
    "knights_knaves": [{"n_people": n} for n in (2, 3, 4, 5)],
    "leg_counting": _ranges("min_animals", "max_animals", ((1, 2), (3, 4), (5, 7), (8, 12))),
}


@dataclass(frozen=True)
class SyntheticPrompts:
    """Q prompts: ids, task types, levels [Q] in 0 to 3, and texts where they are real."""

    prompt_ids: tuple[str, ...]
    tasks: tuple[str, ...]
    levels: IntArray
    texts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SyntheticLog:
    """A log and its truth.

    Attributes:
        prompts: the Q prompts.
        success_prob: [E, Q] true probabilities.
        successes: [E, Q] of `trials` rollouts.
        trials: rollouts of each visit.
    """

    prompts: SyntheticPrompts
    success_prob: FloatArray
    successes: IntArray
    trials: int

    def as_log(self) -> PassRateLog:
        """The log as predictors may see it: an epoch a step."""
        rows = np.arange(len(self.prompts.prompt_ids))
        steps = tuple(Visits(rows, s, np.full(len(rows), self.trials)) for s in self.successes)
        return PassRateLog(self.prompts.prompt_ids, steps, self.prompts.texts, self.prompts.tasks)


def labelled_prompts(num_tasks: int, num_per_level: int) -> SyntheticPrompts:
    """Prompts that are labels alone: T types, four levels each."""
    names = [f"task_{task:02d}" for task in range(num_tasks)]
    rows = [(name, level, i) for name in names for level in range(NUM_LEVELS) for i in range(num_per_level)]
    ids = tuple(f"{name}.{level}/{i:04d}" for name, level, i in rows)
    return SyntheticPrompts(ids, tuple(name for name, *_ in rows), np.array([level for _, level, _ in rows]))


def reasoning_gym_prompts(num_tasks: int, num_per_level: int, seed: int) -> SyntheticPrompts:
    """Questions of the first `num_tasks` types of `REASONING_GYM_MIX`, their levels drawn by seeds of their own."""
    configs: dict[str, TaskConfig] = {}
    origin: dict[str, tuple[str, int]] = {}
    for name in list(REASONING_GYM_MIX)[:num_tasks]:
        for level, params in enumerate(REASONING_GYM_MIX[name]):
            label = f"{name}.{level}"
            origin[label] = (name, level)
            configs[label] = TaskConfig(name, num_per_level, NUM_LEVELS * seed + level, dict(params))
    prompts = list(read_tasks(configs))
    return SyntheticPrompts(
        tuple(prompt.prompt_id for prompt in prompts),
        tuple(origin[prompt.task][0] for prompt in prompts),
        np.array([origin[prompt.task][1] for prompt in prompts]),
        tuple(prompt.text for prompt in prompts),
    )


def synthetic_log(
    prompts: SyntheticPrompts, *, epochs: int, trials: int, seed: int, own_spread: float = OWN_SPREAD
) -> SyntheticLog:
    """Draw abilities, slopes, drift and outcomes.

    Args:
        prompts: Q prompts.
        epochs: E, visits of each prompt.
        trials: rollouts a visit.
        seed: of all that is drawn here.
        own_spread: standard deviation of `own`, in logits; 0: type and level alone decide.
    """
    rng = np.random.default_rng(seed)
    names, task = np.unique(prompts.tasks, return_inverse=True)
    ability = rng.normal(*_ABILITY, size=len(names))
    slope = rng.uniform(*_SLOPE, size=len(names))
    own = rng.normal(0.0, own_spread, size=len(task))
    rate = rng.uniform(*_RATE, size=len(task)) * (rng.random(len(task)) >= _NEVER)
    start = ability[task] - slope[task] * (prompts.levels - (NUM_LEVELS - 1) / 2) + own
    logit = start[None, :] + np.arange(epochs)[:, None] * rate[None, :]
    p = 0.5 * (1.0 + np.tanh(0.5 * logit))
    return SyntheticLog(prompts, p, rng.binomial(trials, p), trials)


def write_synthetic_log(log: SyntheticLog, path: Path) -> list[Path]:
    """Write the rates as JSON, the truth and, where there are any, the texts as Parquet beside it.

    `NAME.json` maps prompt ids to the pass rates of each epoch; `NAME.prompts.parquet` holds prompt_id, task and text;
    `NAME.truth.parquet` holds prompt_id, task, level and the true probability of each epoch.

    Returns:
        The files that were written.
    """
    prompts = log.prompts
    rates = {name: (s / log.trials).tolist() for name, s in zip(prompts.prompt_ids, log.successes.T, strict=True)}
    path.write_text(json.dumps(rates) + "\n")
    columns: dict[str, Any] = {"prompt_id": list(prompts.prompt_ids), "task": list(prompts.tasks)}
    truth = path.with_suffix(".truth.parquet")
    write_table(
        pa.table({**columns, "level": prompts.levels.tolist(), "success_prob": log.success_prob.T.tolist()}), truth
    )
    if prompts.texts is None:
        return [path, truth]
    texts = path.with_suffix(".prompts.parquet")
    write_table(pa.table({**columns, "text": list(prompts.texts)}), texts)
    return [path, texts, truth]


def captured_share(
    success_prob: FloatArray,
    predicted: tuple[FloatArray, FloatArray],
    *,
    budget_per_prompt: int,
    lower: int,
    upper: int,
    estimator: str,
) -> float:
    """How much of what perfect predictions gain over uniform counts an allocation from predictions gains.

        (V(uniform) - V(predicted)) / (V(uniform) - V(true)),      V(n) = Σ_q p_q (1 - p_q) g(n_q)

    with n the optimal allocations for the respective variances and p the truth. 1 is all of it, 0 is uniform, and
    below 0 is worse than uniform.

    Args:
        success_prob: [B] true probabilities, not all of the same variance.
        predicted: `success_prob` [B] and `gradient_variance` [B] of a predictor.
        budget_per_prompt: uniform counts.
        lower: L.
        upper: U.
        estimator: whose g counts, `rloo` or `dr_grpo`.
    """

    def variance(p: FloatArray, gradient_variance: FloatArray | None) -> float:
        budget = budget_per_prompt * len(p)
        n = allocate(p, budget, lower=lower, upper=upper, estimator=estimator, gradient_variance=gradient_variance)
        return float((true_variance * g(n)).sum())

    g = ESTIMATORS[estimator].variance
    true_variance = success_prob * (1.0 - success_prob)
    uniform = float((true_variance * g(np.full(len(success_prob), budget_per_prompt))).sum())
    return (uniform - variance(*predicted)) / (uniform - variance(success_prob, None))
