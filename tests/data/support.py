"""Prompts for tests, without files and without a real tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from vipray.config import BadRowsConfig
from vipray.data.build import PromptRow, PromptSetReport, PromptSource, build_prompt_set
from vipray.data.chat import Message
from vipray.data.prompts import Prompt, PromptSet


def byte_tokens(conversations):
    """A token a byte of what is said."""
    return [list("".join(message.content for message in messages).encode()) for messages in conversations]


def source(prompts: Iterable[Prompt], label: str = "t", limit: int | None = None) -> PromptSource:
    rows = [PromptRow(p, (Message("user", p.text),), f"{label} row {n}") for n, p in enumerate(prompts, start=1)]
    return PromptSource(label, lambda: rows, limit)


def prompt_set(
    prompts: Iterable[Prompt], max_tokens: int = 100, bad_rows: BadRowsConfig | None = None
) -> tuple[PromptSet, PromptSetReport]:
    return build_prompt_set([source(prompts)], byte_tokens, max_tokens, bad_rows=bad_rows)
