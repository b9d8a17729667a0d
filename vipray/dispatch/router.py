"""Spreads rollouts over generators."""

from __future__ import annotations

from collections.abc import Sequence

from vipray.records import RolloutId


def spread(rollout_ids: Sequence[RolloutId], generator_ids: Sequence[str]) -> dict[str, list[RolloutId]]:
    """Give each generator an equal, contiguous share, so that counts differ by at most one.

    Rollouts of a prompt follow each other, so a share holds few distinct prompts and the engine's prefix cache
    serves most of them; a large group is split over several generators all the same.

    >>> ids = [RolloutId(0, "a", 0), RolloutId(0, "a", 1), RolloutId(0, "b", 0)]
    >>> {g: len(share) for g, share in spread(ids, ["x", "y"]).items()}
    {'x': 2, 'y': 1}
    """
    if not generator_ids:
        raise ValueError("there is no generator to spread rollouts over")
    size, rest = divmod(len(rollout_ids), len(generator_ids))
    shares: dict[str, list[RolloutId]] = {}
    start = 0
    for index, generator_id in enumerate(generator_ids):
        end = start + size + (index < rest)
        if end > start:
            shares[generator_id] = list(rollout_ids[start:end])
        start = end
    return shares
