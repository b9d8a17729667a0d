"""What the columns of a data file mean: the schema of verl and DAPO, GSM8K, or a mapping from the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vipray.config import ColumnsConfig, FileConfig
from vipray.data.chat import Messages, as_messages
from vipray.data.files import Row
from vipray.data.golds import NOT_A_NUMBER, JsonNumber, exact_answers
from vipray.errors import ConfigError

_GSM8K_MARK = "####"  # stands before the answer at the end of a worked solution
_GSM8K_SOURCES = ("openai/gsm8k", "gsm8k")  # what verl's `data_source` calls it


@dataclass(frozen=True)
class Draft:
    """What a row says of a prompt.

    Attributes:
        messages: the prompt; empty where there is none.
        answers: the right answer, then its aliases; empty where it is missing.
        task: label, where the row has one.
        given_id: id, where the row has one.
        is_id_unique: whether the file promises that no other prompt has this id.
        verifier: name of the verifier that fits the row, where the format tells.
    """

    messages: Messages
    answers: tuple[str, ...]
    task: str | None = None
    given_id: str | None = None
    is_id_unique: bool = False
    verifier: str = ""


@dataclass(frozen=True)
class Format:
    """How rows of a format are read: the columns that it looks at, and what they mean."""

    columns: tuple[str, ...]
    parse: Callable[[Row], Draft]


def choose_format(label: str, config: FileConfig, first: Row) -> Format:
    """Return the format of a file, from its configuration or else from its first row.

    Raises:
        ConfigError: no format fits.
    """
    if config.format == "verl":
        return VERL
    if config.format == "gsm8k":
        return GSM8K
    mapping = _mapped(config.columns)
    if config.format == "columns" or config.columns != ColumnsConfig():
        return mapping
    values = first.values
    if {"prompt", "reward_model"} <= values.keys():
        return VERL
    if {"question", "answer"} <= values.keys() and _GSM8K_MARK in str(values["answer"]):
        return GSM8K
    if {config.columns.prompt, config.columns.answer} <= values.keys():
        return mapping
    raise ConfigError(
        f"{first.place} is neither in the schema of verl (prompt, reward_model) nor in GSM8K's (question, answer with "
        f"'#### n'): it has {', '.join(values)}; name its columns, e.g. data.files.{label}.columns.prompt=question"
    )


def unused_columns(label: str, config: FileConfig, first: Row, format_: Format) -> list[str]:
    """Say of columns that are called `task` or `id` that nothing is made of them, where that is so."""
    names = [name for name in ("task", "id") if name in first.values and name not in format_.columns]
    if format_ is VERL or not names:
        return []
    settings = ", ".join(f"data.files.{label}.columns.{name}={name}" for name in names)
    return [f"data.files.{label}: no use is made of its column {' or '.join(names)}: to change that, set {settings}"]


def _value(row: Row, name: str) -> Any:
    """A value by the name of its column, or by a path with dots into an object."""
    if name in row.values:
        return row.values[name]
    value: Any = row.values
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ConfigError(f"{row.place} has no {name}: it has {', '.join(row.values)}")
        value = value[part]
    return value


def _label(row: Row, name: str, value: Any) -> str | None:
    """A task or an id: a text or a whole number, never blank."""
    if value is None or value != value or (isinstance(value, JsonNumber) and value in NOT_A_NUMBER):
        return None
    if isinstance(value, float) and value.is_integer():  # how pandas keeps whole numbers beside missing ones
        value = int(value)
    if isinstance(value, JsonNumber):
        value = re.sub(r"\.0+$", "", value)
        value = value if re.fullmatch(r"-?\d+", value) else float(value)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ConfigError(f"{row.place}: {name} must be a text or a whole number, got {value!r:.80}")
    return str(value)


def _parse_verl(row: Row) -> Draft:
    prompt, reward = _value(row, "prompt"), _value(row, "reward_model")
    if not isinstance(reward, dict) or "ground_truth" not in reward:
        raise ConfigError(f"{row.place}: reward_model must be an object with a ground_truth, got {reward!r:.80}")
    if reward.get("style") == "model":
        raise ConfigError(f"{row.place}: reward_model.style=model asks for a reward model; rules alone are supported")
    extra = row.values.get("extra_info")
    index = extra.get("index") if isinstance(extra, dict) else None
    source = _label(row, "data_source", row.values.get("data_source"))
    return Draft(
        as_messages(prompt, row.place),
        exact_answers(reward["ground_truth"], row.place),
        source,
        _label(row, "extra_info.index", index),
        verifier="gsm8k" if source in _GSM8K_SOURCES else "math" if _is_math(row.values) else "",
    )


def _is_math(values: Mapping[str, Any]) -> bool:
    ability = values.get("ability")
    return isinstance(ability, str) and "math" in ability.lower()


def _parse_gsm8k(row: Row) -> Draft:
    question, solution = _value(row, "question"), _value(row, "answer")
    if solution is not None and (not isinstance(solution, str) or (solution.strip() and _GSM8K_MARK not in solution)):
        raise ConfigError(f"{row.place}: the answer must be a text that ends in '#### n', got {solution!r:.80}")
    gold = None if solution is None else solution.rpartition(_GSM8K_MARK)[2].strip()
    return Draft(as_messages(question, row.place), exact_answers(gold, row.place), verifier="gsm8k")


def _mapped(columns: ColumnsConfig) -> Format:
    """The format that a mapping of columns describes."""
    used = [name for name in vars(columns).values() if name is not None]
    looked_at = [*used, *(name.partition(".")[0] for name in used)]
    return Format(tuple(dict.fromkeys(looked_at)), lambda row: _parse_mapped(columns, row))


def _parse_mapped(columns: ColumnsConfig, row: Row) -> Draft:
    answers = exact_answers(_value(row, columns.answer), row.place)
    aliases = () if columns.aliases is None else exact_answers(_value(row, columns.aliases), row.place)
    return Draft(
        as_messages(_value(row, columns.prompt), row.place),
        tuple(dict.fromkeys(answers + aliases)) if answers else (),
        None if columns.task is None else _label(row, columns.task, _value(row, columns.task)),
        None if columns.id is None else _label(row, columns.id, _value(row, columns.id)),
        is_id_unique=columns.id is not None,
    )


VERL = Format(("prompt", "reward_model", "data_source", "ability", "extra_info"), _parse_verl)
GSM8K = Format(("question", "answer"), _parse_gsm8k)
