"""From rows to a prompt set: duplicates and prompts that cannot be trained on are left out, counted and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

import pyarrow as pa

from vipray.config import BadRowsConfig
from vipray.data.chat import Messages, conversation_key, is_blank
from vipray.data.prompts import PROMPT_SCHEMA, Prompt, PromptSet
from vipray.errors import ConfigError
from vipray.verifiers.numbers import TooCostlyError, exact_value

_BATCH_ROWS = 512  # tokenised together
_NUM_PLACES = 3  # named of each kind of row that is left out
_VERIFIERS_WITHOUT_ANSWERS = ("reasoning_gym",)  # score by what the task itself knows
_VERIFIERS_OF_NUMBERS = ("gsm8k", "math")  # to which 033 and 33 are the same

Tokenize = Callable[[Sequence[Messages]], Sequence[Sequence[int]]]
CheckGold = Callable[[Prompt], str | None]


class Reason(StrEnum):
    """Why a row was left out."""

    DUPLICATE = "exact duplicates"
    TOO_LONG = "over the length limit"
    EMPTY = "with an empty prompt"
    NO_ANSWER = "without an answer"
    CONFLICT = "with conflicting answers"
    UNGRADABLE = "with an answer that cannot be graded"


_SHOWN_WITH_PLACES = (Reason.EMPTY, Reason.NO_ANSWER, Reason.CONFLICT, Reason.UNGRADABLE)


@dataclass(frozen=True)
class PromptRow:
    """A prompt as it was read: its conversation, and where it came from, for messages."""

    prompt: Prompt
    messages: Messages
    place: str
    is_id_unique: bool = True  # else an id that is taken gets a number at its end


@dataclass(frozen=True)
class PromptSource:
    """Rows that belong together: a task, or the files of one label."""

    label: str
    rows: Callable[[], Iterable[PromptRow]]
    limit: int | None = None  # prompts to keep at most
    notes: list[str] = field(default_factory=list)  # what is found out while the rows are read, for the report


@dataclass(frozen=True)
class SourceReport:
    """What became of the rows of one source."""

    label: str
    num_read: int
    num_kept: int
    dropped: Mapping[Reason, int]


@dataclass(frozen=True)
class PromptSetReport:
    """What became of the rows that were read; the first places of those left out, with a word on each."""

    sources: tuple[SourceReport, ...]
    places: Mapping[Reason, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def num_read(self) -> int:
        """Rows read."""
        return sum(source.num_read for source in self.sources)

    @property
    def num_kept(self) -> int:
        """Prompts to train on."""
        return sum(source.num_kept for source in self.sources)

    def num_dropped(self, reason: Reason) -> int:
        """Rows left out for a reason."""
        return sum(source.dropped[reason] for source in self.sources if reason in source.dropped)

    def __str__(self) -> str:
        counts = {reason: self.num_dropped(reason) for reason in Reason}
        duplicates = f"{counts.pop(Reason.DUPLICATE)} exact duplicates removed"
        others = [f"{count} {reason} dropped" for reason, count in counts.items() if count]
        return f"{self.num_kept} prompts ({', '.join([f'{self.num_read} read', duplicates, *others])})"

    def lines(self) -> list[str]:
        """The summary, a line for each kind of faulty row with the first of their places, and what is to be known."""
        places = [self._places_line(reason) for reason in _SHOWN_WITH_PLACES if self.num_dropped(reason)]
        return [str(self), *places, *self.notes]

    def _places_line(self, reason: Reason) -> str:
        count, places = self.num_dropped(reason), self.places[reason]
        more = f"; and {count - len(places)} more" if count > len(places) else ""
        return f"dropped, {reason}: {'; '.join(places)}{more}"


def build_prompt_set(
    sources: Iterable[PromptSource],
    tokenize: Tokenize,
    max_tokens: int,
    *,
    check_gold: CheckGold = lambda _: None,
    bad_rows: BadRowsConfig | None = None,
) -> tuple[PromptSet, PromptSetReport]:
    """Leave out what cannot be trained on and tokenise the rest.

    Rows with the same conversation (`conversation_key`) are one prompt, the first of them. Where their answers differ,
    which of them is right cannot be known: none is kept. Numbers agree by value where the verifier compares values. A
    reasoning-gym task, which knows more than its example, agrees with any answer.

    Args:
        sources: where the rows come from, in order.
        tokenize: conversations to token ids, chat template included.
        max_tokens: longest prompt, in tokens after the chat template.
        check_gold: None where a prompt's answer can be graded, else the reason why not.
        bad_rows: which faulty rows are dropped and which are an error.

    Raises:
        ConfigError: a row that is to be refused, an id that comes twice, or nothing left to train on.
    """
    builder = _Builder(tokenize, max_tokens, check_gold, bad_rows or BadRowsConfig())
    for source in sources:
        builder.add_source(source)
    return builder.finish()


@dataclass(frozen=True)
class _First:
    """The first row of a conversation."""

    answers: frozenset[str | Fraction]
    place: str


class _Builder:
    """Collects rows in order, in batches that are tokenised together."""

    def __init__(self, tokenize: Tokenize, max_tokens: int, check_gold: CheckGold, rules: BadRowsConfig) -> None:
        self._tokenize = tokenize
        self._max_tokens = max_tokens
        self._check_gold = check_gold
        self._rules = {
            Reason.EMPTY: ("empty_prompt", rules.empty_prompt),
            Reason.NO_ANSWER: ("missing_answer", rules.missing_answer),
            Reason.CONFLICT: ("conflicting_answers", rules.conflicting_answers),
            Reason.UNGRADABLE: ("ungradable_answer", rules.ungradable_answer),
        }
        self._first: dict[bytes, _First] = {}
        self._conflicts: set[bytes] = set()
        self._place_of_id: dict[str, str] = {}
        self._batches: list[pa.RecordBatch] = []
        self._kept: list[tuple[bytes, str]] = []  # conversation and source of each row of the batches
        self._pending: list[tuple[bytes, PromptRow]] = []
        self._read: Counter[str] = Counter()
        self._dropped: dict[str, Counter[Reason]] = {}
        self._places: dict[Reason, list[str]] = {}
        self._notes: list[str] = []
        self._shortest: int | None = None

    def add_source(self, source: PromptSource) -> None:
        """Take the rows of a source, as many as it allows."""
        self._label = source.label
        self._read[source.label] = 0
        self._dropped[source.label] = Counter()
        start = len(self._kept)
        for row in source.rows():
            self._add(row)
            waiting = len(self._kept) - start + len(self._pending)
            if len(self._pending) >= _BATCH_ROWS or (source.limit is not None and waiting >= source.limit):
                self._flush()
            if source.limit is not None and len(self._kept) - start >= source.limit:
                break
        self._flush()
        self._notes += source.notes

    def finish(self) -> tuple[PromptSet, PromptSetReport]:
        """Take out conversations whose answers differ, and return what is left."""
        keep = [key not in self._conflicts for key, _ in self._kept]
        for (_, label), kept in zip(self._kept, keep, strict=True):
            if not kept:
                self._dropped[label][Reason.CONFLICT] += 1
        kept_of = Counter(label for (_, label), kept in zip(self._kept, keep, strict=True) if kept)
        sources = tuple(
            SourceReport(label, count, kept_of[label], dict(self._dropped[label]))
            for label, count in self._read.items()
        )
        places = {reason: tuple(places) for reason, places in self._places.items()}
        report = PromptSetReport(sources, places, tuple(self._notes))
        if not report.num_kept:
            raise ConfigError(self._why_empty(report))
        table = pa.Table.from_batches(self._batches, schema=PROMPT_SCHEMA)
        return PromptSet(table if all(keep) else table.filter(pa.array(keep))), report

    def _add(self, row: PromptRow) -> None:
        prompt = row.prompt
        self._read[self._label] += 1
        if is_blank(prompt.text):
            return self._drop(Reason.EMPTY, row.place)
        if not prompt.answer.strip() and prompt.verifier not in _VERIFIERS_WITHOUT_ANSWERS:
            return self._drop(Reason.NO_ANSWER, row.place)
        key = conversation_key(row.messages)
        fault = None if prompt.verifier in _VERIFIERS_WITHOUT_ANSWERS else self._check_gold(prompt)
        if fault is not None:
            return self._drop(Reason.UNGRADABLE, row.place, f"{prompt.answer!r:.60}: {fault}")
        if key in self._first:
            return self._add_again(key, row)
        self._first[key] = _First(_answers(prompt), row.place)
        self._pending.append((key, self._with_own_id(row)))
        return None

    def _add_again(self, key: bytes, row: PromptRow) -> None:
        """Count a duplicate, or find that its answer is not that of the first."""
        first = self._first[key]
        if key in self._conflicts:
            return self._drop(Reason.CONFLICT, row.place)
        answers = _answers(row.prompt)
        if first.answers == answers or not first.answers or not answers:
            return self._drop(Reason.DUPLICATE, row.place)
        self._conflicts.add(key)
        return self._drop(Reason.CONFLICT, row.place, f"{row.prompt.answer!r:.60}, another one in {first.place}")

    def _drop(self, reason: Reason, place: str, detail: str = "") -> None:
        said = f"{place} ({detail})" if detail else place
        if reason in self._rules:
            setting, rule = self._rules[reason]
            if rule == "refuse":
                raise ConfigError(f"{said} is a row {reason}: mend it, or set data.bad_rows.{setting}=drop")
        self._dropped[self._label][reason] += 1
        places = self._places.setdefault(reason, [])
        if len(places) < _NUM_PLACES:
            places.append(said)

    def _with_own_id(self, row: PromptRow) -> PromptRow:
        """Make sure that no other prompt has the row's id."""
        wanted = prompt_id = row.prompt.prompt_id
        number = 1
        while prompt_id in self._place_of_id:
            if row.is_id_unique:
                raise ConfigError(
                    f"{row.place}: the id {prompt_id} is that of {self._place_of_id[prompt_id]} too, which is another "
                    "prompt: give each its own, or name no id column"
                )
            number += 1
            prompt_id = f"{wanted}.{number}"
        self._place_of_id[prompt_id] = row.place
        return row if prompt_id == wanted else replace(row, prompt=replace(row.prompt, prompt_id=prompt_id))

    def _flush(self) -> None:
        """Tokenise what is pending and keep what is within the limit."""
        rows: list[dict[str, Any]] = []
        for (key, row), token_ids in zip(self._pending, self._token_ids(), strict=True):
            length = len(token_ids)
            self._shortest = length if self._shortest is None else min(self._shortest, length)
            if length > self._max_tokens:
                self._drop(Reason.TOO_LONG, row.place)
                continue
            rows.append({**vars(row.prompt), "token_ids": token_ids})
            self._kept.append((key, self._label))
        self._pending = []
        if rows:
            self._batches.append(pa.RecordBatch.from_pylist(rows, schema=PROMPT_SCHEMA))

    def _token_ids(self) -> Sequence[Sequence[int]]:
        """Tokens of what is pending; where a chat template refuses a conversation, say which."""
        try:
            return self._tokenize([row.messages for _, row in self._pending])
        except ConfigError:
            for _, row in self._pending:
                try:
                    self._tokenize([row.messages])
                except ConfigError as error:
                    raise ConfigError(f"{row.place}: {error}") from None
            raise

    def _why_empty(self, report: PromptSetReport) -> str:
        if not report.num_read:
            return "the prompt set is empty: data.tasks and data.files gave no prompt"
        if report.num_dropped(Reason.TOO_LONG):
            return (
                f"no prompt is within data.max_prompt_tokens={self._max_tokens}: the shortest of {report.num_read} has "
                f"{self._shortest} tokens; {report}"
            )
        return f"no prompt is left to train on: {'; '.join(report.lines())}"


def _answers(prompt: Prompt) -> frozenset[str | Fraction]:
    """What rows of one conversation must agree on; nothing where the task itself knows, and not its one example."""
    if prompt.verifier in _VERIFIERS_WITHOUT_ANSWERS:
        return frozenset()
    read = _value if prompt.verifier in _VERIFIERS_OF_NUMBERS else str.strip
    return frozenset(read(answer) for answer in (prompt.answer, *prompt.aliases))


def _value(answer: str) -> str | Fraction:
    """The number that an answer is, so that `033` agrees with `33`; else its text."""
    try:
        number = exact_value(answer)
    except TooCostlyError:
        number = None
    return answer.strip() if number is None else number
