"""Prompts from reasoning-gym's procedural data sets, a labelled mix of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vipray.config import TaskConfig
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError


def open_task(label: str, task: TaskConfig) -> Any:
    """Open the reasoning-gym data set of a task; the same settings always give the same entries.

    Raises:
        ConfigError: reasoning-gym does not know the data set, or refuses its parameters.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task.dataset not in DATASETS:
        known = f"reasoning-gym's {len(DATASETS)} data sets, such as chain_sum"
        raise ConfigError(f"data.tasks.{label}.dataset={task.dataset!r} is not one of {known}")
    try:
        return reasoning_gym.create_dataset(task.dataset, size=task.size, seed=task.seed, **task.params)
    except (TypeError, ValueError, AssertionError) as error:  # how reasoning-gym refuses parameters
        raise ConfigError(f"data.tasks.{label}.params={task.params} are refused by {task.dataset}: {error}") from None


def read_tasks(tasks: Mapping[str, TaskConfig]) -> Iterator[Prompt]:
    """Yield every prompt of the mix, task by task, with ids `label/index`."""
    for label, task in tasks.items():
        for index, entry in enumerate(open_task(label, task)):
            yield Prompt(f"{label}/{index:04d}", label, index, str(entry["question"]), str(entry["answer"]))
