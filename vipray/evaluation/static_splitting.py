"""Makespans of dispatch that is fixed when a step starts, to compare with: each generator has a queue of its own.

whole groups        every prompt's rollouts to one generator, groups to generators in turn
contiguous shares   equal numbers of rollouts in the order of prompts, so that large groups are split
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

from vipray.evaluation.simulated_workload import StepWork
from vipray.records import RolloutId


def whole_groups(work: StepWork, num_generators: int) -> list[list[RolloutId]]:
    """Give whole groups to generators in turn."""
    queues: list[list[RolloutId]] = [[] for _ in range(num_generators)]
    turn_of = {prompt_id: turn for turn, prompt_id in enumerate(dict.fromkeys(r.prompt_id for r in work.rollout_ids))}
    for rollout_id in work.rollout_ids:
        queues[turn_of[rollout_id.prompt_id] % num_generators].append(rollout_id)
    return queues


def contiguous_shares(work: StepWork, num_generators: int) -> list[list[RolloutId]]:
    """Give each generator an equal number of rollouts that follow each other."""
    ids, total = work.rollout_ids, len(work.rollout_ids)
    edges = [total * index // num_generators for index in range(num_generators + 1)]
    return [list(ids[start:end]) for start, end in itertools.pairwise(edges)]


def makespan(queues: Sequence[Sequence[RolloutId]], tokens: Mapping[RolloutId, float], num_slots: int) -> float:
    """Time until the last queue is done, each served in order by `num_slots` slots at a token per unit of time."""
    return max(_time_of(queue, tokens, num_slots) for queue in queues)


def _time_of(queue: Sequence[RolloutId], tokens: Mapping[RolloutId, float], num_slots: int) -> float:
    free_at = [0.0] * num_slots
    for rollout_id in queue:
        heapq.heapreplace(free_at, free_at[0] + tokens[rollout_id])
    return max(free_at)
