"""Prompts from reasoning-gym's procedural data sets, a labelled mix of them."""

from __future__ import annotations

import dataclasses
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
        ConfigError: reasoning-gym does not know the data set, or refuses its difficulty or its parameters.
    """
    _provide_pycosat()
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task.dataset not in DATASETS:
        known = f"reasoning-gym's {len(DATASETS)} data sets, such as chain_sum"
        raise ConfigError(f"data.tasks.{label}.dataset={task.dataset!r} is not one of {known}")
    params = _difficulty_params(label, task) | task.params
    try:
        return reasoning_gym.create_dataset(task.dataset, **params | {"size": task.size, "seed": task.seed})
    except (TypeError, ValueError, AssertionError) as error:  # how reasoning-gym refuses parameters
        level = "" if task.difficulty is None else f" with difficulty={task.difficulty}"
        raise ConfigError(
            f"data.tasks.{label}.params={task.params}{level} are refused by {task.dataset}: {error}"
        ) from None


def _difficulty_params(label: str, task: TaskConfig) -> dict[str, Any]:
    """Parameters of a level of the data set's curriculum: each attribute at that level, or at its highest."""
    if task.difficulty is None:
        return {}
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode
    from reasoning_gym.factory import create_curriculum, has_curriculum

    key = f"data.tasks.{label}.difficulty={task.difficulty}"
    if not has_curriculum(task.dataset):
        raise ConfigError(f"{key}: {task.dataset} has no levels of difficulty: set data.tasks.{label}.params")
    curriculum = create_curriculum(task.dataset)
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if task.difficulty > highest:
        raise ConfigError(f"{key} is above the highest level of {task.dataset}, {highest}")
    curriculum.set_global_level(task.difficulty)
    context = DefaultCurriculumContext(mode=RangeAttributeMode.UPPER_BOUND)  # that level alone, not those below it
    settings = curriculum.generate_configuration(context=context)
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}


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
        dataset = open_task(label, task)
        for index in range(len(dataset)):
            entry = _entry(label, task, dataset, index)
            answer = "" if entry["answer"] is None else str(entry["answer"])  # some puzzles are scored without one
            yield Prompt(f"{label}/{index:04d}", label, index, str(entry["question"]), answer)


def _entry(label: str, task: TaskConfig, dataset: Any, index: int) -> Mapping[str, Any]:
    try:
        entry: Mapping[str, Any] = dataset[index]
    except (TypeError, ValueError, AssertionError, IndexError) as error:  # parameters that no entry can be made from
        raise ConfigError(
            f"data.tasks.{label}: {task.dataset} cannot make entry {index} with these settings: {error}; change "
            f"data.tasks.{label}.params or difficulty"
        ) from None
    return entry
