"""Prompts from reasoning-gym's procedural data sets, a labelled mix of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from vipray.config import TaskConfig
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError


def open_task(label: str, task: TaskConfig) -> Any:
    """Open the reasoning-gym data set of a task; the same settings always give the same entries.

    Raises:
        ConfigError: reasoning-gym does not know the data set, or refuses its parameters.
    """
    _provide_pycosat()
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task.dataset not in DATASETS:
        known = f"reasoning-gym's {len(DATASETS)} data sets, such as chain_sum"
        raise ConfigError(f"data.tasks.{label}.dataset={task.dataset!r} is not one of {known}")
    try:
        return reasoning_gym.create_dataset(task.dataset, size=task.size, seed=task.seed, **task.params)
    except (TypeError, ValueError, AssertionError) as error:  # how reasoning-gym refuses parameters
        raise ConfigError(f"data.tasks.{label}.params={task.params} are refused by {task.dataset}: {error}") from None


class _MissingSolver(ModuleType):
    """Stands where pycosat would be and says so to whoever uses it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError("this reasoning-gym task needs pycosat: install a C compiler, then `pip install pycosat`")


def _provide_pycosat() -> None:
    """Let reasoning-gym be imported without pycosat.

    It imports that solver at once, for its logic puzzles alone, and PyPI has it as source only: where no C compiler was
    at hand, everything else works all the same.
    """
    if "pycosat" not in sys.modules and importlib.util.find_spec("pycosat") is None:
        sys.modules["pycosat"] = _MissingSolver("pycosat")


def read_tasks(tasks: Mapping[str, TaskConfig]) -> Iterator[Prompt]:
    """Yield every prompt of the mix, task by task, with ids `label/index`."""
    for label, task in tasks.items():
        for index, entry in enumerate(open_task(label, task)):
            yield Prompt(f"{label}/{index:04d}", label, index, str(entry["question"]), str(entry["answer"]))
