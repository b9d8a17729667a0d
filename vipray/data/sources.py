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
from vipray.data.formats import Draft, choose_format
from vipray.data.prompts import Prompt
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
    files = [
        PromptSource(label, functools.partial(_file_rows, label, file, paths, data.system_prompt), file.limit)
        for label, file in data.files.items()
        for paths in [_paths(label, file)]
    ]
    return [*tasks, *files]


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


def _file_rows(label: str, config: FileConfig, paths: list[Path], system: str | None) -> Iterator[PromptRow]:
    """The rows of all files of a label, numbered through from 0."""
    index = 0
    for path in paths:
        file = open_rows(path)
        first = file.first()
        if first is None:
            continue
        format_ = choose_format(label, config, first)
        for row in file.rows(format_.columns):
            yield _prompt_row(label, config, row, format_.parse(row), index, system)
            index += 1
    if not index:
        raise ConfigError(f"data.files.{label}.path={config.path} holds no row")


def _prompt_row(
    label: str, config: FileConfig, row: Row, draft: Draft, index: int, system_prompt: str | None
) -> PromptRow:
    answer, *aliases = draft.answers or ("",)
    messages: Messages = with_system(draft.messages, system_prompt)
    prompt = Prompt(
        prompt_id=f"{label}/{index + 1 if draft.given_id is None else draft.given_id}",
        task=config.task or draft.task or label,
        index=index,
        text=user_text(messages),
        answer=answer,
        verifier=_verifier(label, config, draft, row),
        aliases=tuple(aliases),
    )
    return PromptRow(prompt, messages, row.place, draft.is_id_unique)


def _verifier(label: str, config: FileConfig, draft: Draft, row: Row) -> str:
    name = config.verifier or draft.verifier
    if not name:
        source = "" if draft.task is None else f" (task {draft.task!r})"
        raise ConfigError(
            f"{row.place}: nothing tells which verifier scores it{source}: set data.files.{label}.verifier"
        )
    return name
