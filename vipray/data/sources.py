"""Everything that a prompt set is read from: the tasks and the files of the configuration."""

from __future__ import annotations

import functools
import glob
from collections.abc import Iterator
from pathlib import Path

from vipray.config import DataConfig, FileConfig
from vipray.data.build import PromptRow, PromptSource
from vipray.data.chat import Message, Messages, user_text, with_system
from vipray.data.files import Row, open_rows
from vipray.data.formats import Draft, choose_format, unused_columns
from vipray.data.prompts import VERIFIERS_WITH_ALIASES, Prompt
from vipray.data.tasks import read_tasks
from vipray.errors import ConfigError
from vipray.sources import resolve_source

_PATTERN_CHARACTERS = "*?["


def prompt_sources(data: DataConfig) -> list[PromptSource]:
    """Return the sources in order: tasks, then files. What a file holds is looked at when it is read.

    Raises:
        ConfigError: a file that does not exist.
    """
    tasks = [PromptSource(label, functools.partial(_task_rows, label, data)) for label in data.tasks]
    files = [_file_source(label, file, _paths(label, file), data.system_prompt) for label, file in data.files.items()]
    return [*tasks, *files]


def _file_source(label: str, file: FileConfig, paths: list[Path], system: str | None) -> PromptSource:
    notes: list[str] = []
    return PromptSource(label, lambda: _file_rows(label, file, paths, system, notes), file.limit, notes)


def _task_rows(label: str, data: DataConfig) -> Iterator[PromptRow]:
    for prompt in read_tasks({label: data.tasks[label]}):
        messages = with_system((Message("user", prompt.text),), data.system_prompt)
        yield PromptRow(prompt, messages, f"data.tasks.{label} entry {prompt.index}")


def _paths(label: str, file: FileConfig) -> list[Path]:
    """The file, or the files of a pattern in the order of their names."""
    setting = f"data.files.{label}.path"
    if any(character in file.path for character in _PATTERN_CHARACTERS) and not Path(file.path).exists():
        found = sorted(path for name in glob.glob(str(Path(file.path).expanduser())) if (path := Path(name)).is_file())
        if not found:
            raise ConfigError(f"{setting}={file.path} matches no file")
        return found
    path = resolve_source(setting, file.path)
    if not path.is_file():
        raise ConfigError(f"{setting}={file.path} is no file: name one, or a pattern such as {file.path}/*.parquet")
    return [path]


def _file_rows(
    label: str, config: FileConfig, paths: list[Path], system: str | None, notes: list[str]
) -> Iterator[PromptRow]:
    """The rows of all files of a label, numbered through from 0."""
    index = 0
    for path in paths:
        file = open_rows(path)
        first = file.first()
        if first is None:
            continue
        format_ = choose_format(label, config, first)
        notes += [note for note in unused_columns(label, config, first, format_) if note not in notes]
        for row in file.rows(format_.columns):
            yield _prompt_row(label, config, row, format_.parse(row), index, system)
            index += 1
    if not index:
        raise ConfigError(f"data.files.{label}.path={config.path} holds no row")


def _prompt_row(
    label: str, config: FileConfig, row: Row, draft: Draft, index: int, system_prompt: str | None
) -> PromptRow:
    answer, *aliases = draft.answers or ("",)
    verifier = _verifier(label, config, draft, row)
    if aliases and verifier not in VERIFIERS_WITH_ALIASES:
        raise ConfigError(
            f"{row.place} has {len(draft.answers)} answers, {draft.answers!r:.60}, and verifier {verifier} takes one: "
            f"write them as one text, or set data.files.{label}.verifier to one that takes several, such as qa"
        )
    messages: Messages = with_system(draft.messages, system_prompt)
    prompt = Prompt(
        prompt_id=f"{label}/{_own_id(draft, index)}",
        task=config.task or draft.task or label,
        index=index,
        text=user_text(messages),
        answer=answer,
        verifier=verifier,
        aliases=tuple(aliases),
    )
    return PromptRow(prompt, messages, row.place, draft.is_id_unique and draft.given_id is not None)


def _own_id(draft: Draft, index: int) -> str:
    """The row's id; where other rows of the file have one and this has none, one that is no number."""
    if draft.given_id is not None:
        return draft.given_id
    return f"row-{index + 1}" if draft.is_id_unique else str(index + 1)


def _verifier(label: str, config: FileConfig, draft: Draft, row: Row) -> str:
    name = config.verifier or draft.verifier
    if not name:
        source = "" if draft.task is None else f" (task {draft.task!r})"
        raise ConfigError(
            f"{row.place}: nothing tells which verifier scores it{source}: set data.files.{label}.verifier"
        )
    return name
