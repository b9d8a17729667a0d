"""How many prompts each task of a mix gets, from weights."""

from __future__ import annotations

from collections.abc import Mapping


def share_sizes(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Split `total` in proportion to the weights, to whole numbers that sum to it exactly (largest remainder).

    Args:
        weights: positive, by label.
        total: >= 0.

    >>> share_sizes({"a": 1.0, "b": 2.0, "c": 0.5}, 10)
    {'a': 3, 'b': 6, 'c': 1}
    """
    scale = total / sum(weights.values()) if weights else 0.0
    exact = {label: weight * scale for label, weight in weights.items()}
    sizes = {label: int(value) for label, value in exact.items()}
    by_remainder = sorted(exact, key=lambda label: sizes[label] - exact[label])
    for label in by_remainder[: total - sum(sizes.values())] if weights else []:
        sizes[label] += 1
    return sizes
