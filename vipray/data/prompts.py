"""The prompt set: what is trained on, tokenised once, as one Arrow table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from vipray.errors import ConfigError

PROMPT_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),  # of the task's data set
        pa.field("text", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),  # after the chat template
    ]
)


@dataclass(frozen=True)
class Prompt:
    """A prompt before tokenisation; `index` is its place in the task's data set."""

    prompt_id: str
    task: str
    index: int
    text: str
    answer: str


@dataclass(frozen=True)
class PromptSetReport:
    """What became of the prompts that were read."""

    num_read: int
    num_duplicates: int
    num_too_long: int
    num_kept: int

    def __str__(self) -> str:
        return (
            f"{self.num_kept} prompts ({self.num_read} read, {self.num_duplicates} exact duplicates removed, "
            f"{self.num_too_long} over the length limit dropped)"
        )


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

    def token_ids(self, prompt_id: str) -> list[int]:
        """The tokens that the policy is prompted with."""
        return list(self.table.column("token_ids")[self._row[prompt_id]].as_py())

    def prompt(self, prompt_id: str) -> Prompt:
        """The prompt behind an id."""
        row = self._row[prompt_id]
        values = {name: self.table.column(name)[row].as_py() for name in Prompt.__dataclass_fields__}
        return Prompt(**values)

    def __len__(self) -> int:
        return self.table.num_rows


def build_prompt_set(
    prompts: Iterable[Prompt], tokenize: Callable[[str], Sequence[int]], max_tokens: int
) -> tuple[PromptSet, PromptSetReport]:
    """Drop exact duplicates and prompts over the limit, and tokenise the rest.

    Args:
        prompts: prompts with distinct ids.
        tokenize: text to token ids, chat template included.
        max_tokens: longest prompt, in tokens after the chat template.

    Raises:
        ConfigError: an empty text or answer, or nothing left to train on.
    """
    rows: list[dict[str, object]] = []
    seen: set[str] = set()
    num_read = num_too_long = 0
    shortest: int | None = None
    for prompt in prompts:
        num_read += 1
        if not prompt.text.strip() or not prompt.answer.strip():
            raise ConfigError(f"prompt {prompt.prompt_id} has an empty text or answer: remove it from data.tasks")
        if prompt.text in seen:
            continue
        seen.add(prompt.text)
        token_ids = list(tokenize(prompt.text))
        shortest = len(token_ids) if shortest is None else min(shortest, len(token_ids))
        if len(token_ids) > max_tokens:
            num_too_long += 1
            continue
        rows.append({**vars(prompt), "token_ids": token_ids})
    report = PromptSetReport(num_read, num_read - len(seen), num_too_long, len(rows))
    if not num_read:
        raise ConfigError("the prompt set is empty: data.tasks gave no prompt")
    if not rows:
        raise ConfigError(
            f"no prompt is within data.max_prompt_tokens={max_tokens}: the shortest of {num_read} has {shortest} tokens"
        )
    return PromptSet(pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA)), report
