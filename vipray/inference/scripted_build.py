"""The scripted engine of a configuration: what the section `scripted` says, for the prompts of a run.

Everything is a hash of the seed and of an id, so that all engines of a run, those that replace others included, answer
alike: a run with scripted engines and learner is a function of its configuration.
"""

from __future__ import annotations

import functools
import hashlib
import math
from statistics import NormalDist

from vipray.config import ScriptedConfig
from vipray.data.prompts import PromptSet
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.records import RolloutId

LONGEST_IN_MEDIANS = 4.0
_LOG_LATENCY_SPREAD = 0.6  # of normal logarithms: one rollout in a hundred reaches the longest latency


def scripted_engine(config: ScriptedConfig, prompts: PromptSet, seed: int) -> ScriptedEngine:
    """Make an engine that answers a run's prompts.

    Args:
        config: probabilities, latencies and lengths.
        prompts: the prompts, with their right answers.
        seed: of the run, and the same for all of its engines.
    """
    low, high = config.success_prob_low, config.success_prob_high
    answers = dict(zip(prompts.prompt_ids, prompts.table.column("answer").to_pylist(), strict=True))
    return ScriptedEngine(
        Script(
            success_prob={key: low + (high - low) * _uniform("success", seed, key) for key in answers},
            answer=answers,
            latency_s=functools.partial(_latency_s, config.latency_s, seed),
            num_tokens=lambda _: config.num_tokens,
            seed=seed,
        )
    )


def _latency_s(median_s: float, seed: int, rollout_id: RolloutId) -> float:
    """Draw a log-normal latency around `median_s`, cut at its longest."""
    z = NormalDist().inv_cdf(_uniform("latency", seed, *rollout_id))
    return median_s * min(math.exp(_LOG_LATENCY_SPREAD * z), LONGEST_IN_MEDIANS)


def _uniform(*key: object) -> float:
    """A number in (0, 1) that is a hash of its key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return (int.from_bytes(digest[:6]) + 0.5) / 2**48
