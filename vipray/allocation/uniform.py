"""The baseline: every prompt gets the same number of rollouts."""

from __future__ import annotations

import numpy as np

from vipray.allocation.exact import check_budget
from vipray.arrays import IntArray


def allocate_uniform(num_prompts: int, budget: int, *, lower: int, upper: int) -> IntArray:
    """Split `budget` evenly; the first prompts get one more where it does not divide.

    Raises:
        ValueError: for a budget that does not fit the bounds.

    >>> allocate_uniform(3, 8, lower=2, upper=4).tolist()
    [3, 3, 2]
    """
    check_budget(num_prompts, budget, lower, upper)
    share, rest = divmod(budget, num_prompts)
    return np.where(np.arange(num_prompts) < rest, share + 1, share).astype(np.int64)
