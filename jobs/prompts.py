"""The prompts of a configuration, read and tokenised as a run has them: what `vipray train` and `vipray data` share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from vipray.config import Config
from vipray.data.build import CheckGold, PromptSetReport, build_prompt_set
from vipray.data.chat import Messages
from vipray.data.prompts import PromptSet
from vipray.data.sources import prompt_sources
from vipray.errors import ConfigError
from vipray.learner.model_folder import check_tokenizer, ensure_model_folder, max_positions
from vipray.verifiers.builder import VerifierBuilder


def read_prompts(config: Config, console: Console) -> PromptSet:
    """Read the prompts of a run, say on the console what became of them, and check that they suffice."""
    prompts, report, _ = load_prompt_set(config, console)
    if len(prompts) < config.allocation.prompts_per_batch:
        raise ConfigError(
            f"allocation.prompts_per_batch={config.allocation.prompts_per_batch} is more than the {len(prompts)} "
            f"prompts that are left: no prompt may come twice in a batch; {report}"
        )
    return prompts


def load_prompt_set(config: Config, console: Console) -> tuple[PromptSet, PromptSetReport, ChatTokenizer]:
    """Read and tokenise the prompts with the policy's own tokenizer and chat template.

    Raises:
        ConfigError: settings that do not fit the model, or whatever is wrong with a file.
    """
    sources = prompt_sources(config.data)  # before the model is looked at: a missing file is found out at once
    console.print(f"reading prompts and the tokenizer of {config.model.path}", style="dim")
    os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of loading a model in a second only hide what matters
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # set, so that they do not warn when Ray starts processes
    folder = ensure_model_folder(config.model.path, config.model.cache_dir)
    longest = config.data.max_prompt_tokens + config.sampling.max_tokens
    if longest > max_positions(folder):
        raise ConfigError(
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} and "
            f"sampling.max_tokens={config.sampling.max_tokens} are together more than the {max_positions(folder)} "
            f"positions of {config.model.path}: lower one of them"
        )
    tokenizer = ChatTokenizer.of_folder(folder, config.model.path)
    doubt = check_tokenizer(folder, len(tokenizer.tokenizer), config.model.path)
    if doubt is not None:
        console.print(doubt)
    prompts, report = build_prompt_set(
        sources,
        tokenizer,
        config.data.max_prompt_tokens,
        check_gold=_gold_checker(config),
        bad_rows=config.data.bad_rows,
    )
    for line in report.lines():
        console.print(line, style="dim")
    return prompts, report, tokenizer


def count_prompts(config: Config) -> int:
    """Prompts of a configuration, without a look at the model: none is over its limit, every answer can be graded."""
    prompts, _ = build_prompt_set(prompt_sources(config.data), _no_tokens, sys.maxsize, bad_rows=config.data.bad_rows)
    return len(prompts)


def _no_tokens(conversations: Sequence[Messages]) -> list[list[int]]:
    return [[] for _ in conversations]


@dataclass(frozen=True)
class ChatTokenizer:
    """Conversations to tokens, by a Hugging Face tokenizer and its chat template."""

    tokenizer: Any

    @classmethod
    def of_folder(cls, folder: Path, name: str) -> ChatTokenizer:
        """Load the tokenizer of a model's folder; `name` is what messages call the model.

        Raises:
            ConfigError: it has no chat template.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        if not tokenizer.chat_template:
            raise ConfigError(f"model.path={name}: its tokenizer has no chat template: take an instruction-tuned model")
        return cls(tokenizer)

    def __call__(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Token ids of each conversation, ready for the policy's answer.

        Raises:
            ConfigError: the template refuses a conversation.
        """
        if not conversations:
            return []
        texts = [self._rendered(messages) for messages in conversations]
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def text(self, token_ids: Sequence[int]) -> str:
        """What the policy is shown, special tokens included."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=False))

    def _rendered(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        turns = [message._asdict() for message in messages]
        try:
            return str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise ConfigError(f"the model's chat template refuses this prompt: {error}") from None


def _gold_checker(config: Config) -> CheckGold:
    """What says why a prompt's answer cannot be graded; a verifier is built when its first prompt comes."""
    verifiers = config.verifiers
    builder = VerifierBuilder(verifiers.function, config.data.tasks, verifiers.python_tests)
    verifier_of = functools.cache(builder.__call__)
    return lambda prompt: verifier_of(prompt.verifier).check_gold(prompt)
