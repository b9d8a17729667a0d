"""The prompt set: what is trained on, tokenised once, as one Arrow table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from vipray.data.fingerprint import fingerprint

PROMPT_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),  # of the task's data set, or of the row in its file
        pa.field("text", pa.string(), nullable=False),  # what the user says, without the chat template
        pa.field("answer", pa.string(), nullable=False),
        pa.field("verifier", pa.string(), nullable=False),
        pa.field("aliases", pa.list_(pa.string()), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),  # after the chat template
    ]
)


VERIFIERS_WITH_ALIASES = ("qa", "qa_f1")
"""Verifiers that accept further right answers; any other would take the first for the only one."""


@dataclass(frozen=True)
class Prompt:
    """A prompt before tokenisation; `index` is its place in the task's data set or in its file, from 0."""

    prompt_id: str
    task: str
    index: int
    text: str
    answer: str
    verifier: str = "reasoning_gym"  # name of the verifier that scores it, a key of vipray/verifiers/build.py
    aliases: tuple[str, ...] = ()  # further right answers


class PromptSet:
    """Prompts by id, over an Arrow table with `PROMPT_SCHEMA` that the object store shares without a copy."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.cast(PROMPT_SCHEMA)
        self._row = {prompt_id: row for row, prompt_id in enumerate(self.prompt_ids)}

    @property
    def prompt_ids(self) -> list[str]:
        """All ids, in the order of the table."""
        return list(self.table.column("prompt_id").to_pylist())

    @property
    def task_of(self) -> dict[str, str]:
        """Task label by prompt id."""
        return dict(zip(self.prompt_ids, self.table.column("task").to_pylist(), strict=True))

    @property
    def texts(self) -> list[str]:
        """The prompts' texts, without the chat template, in the order of the table."""
        return list(self.table.column("text").to_pylist())

    @cached_property
    def fingerprint(self) -> str:
        """Changes with every id, token, answer and label of the set, and with their order."""
        return fingerprint(self.table)

    def token_ids(self, prompt_id: str) -> list[int]:
        """The tokens that the policy is prompted with."""
        return list(self.table.column("token_ids")[self._row[prompt_id]].as_py())

    def prompt(self, prompt_id: str) -> Prompt:
        """The prompt behind an id."""
        row = self._row[prompt_id]
        values = {name: self.table.column(name)[row].as_py() for name in Prompt.__dataclass_fields__}
        return Prompt(**values | {"aliases": tuple(values["aliases"])})

    def __len__(self) -> int:
        return self.table.num_rows
