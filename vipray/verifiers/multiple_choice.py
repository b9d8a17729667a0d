r"""The letter, or letters, of a multiple-choice question.

The gold is one or more capital letters: `C`, `(C)`, `C. 42`, `\text{(C)}`, `A, C`. The answer is what is marked as such
(see `answer_text`), else the last sentence of the form `… option C`, else a completion that is the letter alone.
Letters may stand in brackets, in bold, or with their option's text behind them. An `A` or `I` that begins a sentence
of prose is a word. The answer's set of letters must be the gold's: `A or C` does not answer `C`. Nor does an answer
that denies its letter, or has another one behind it (but for `C, not B` and what follows `because`), unless it is the
gold's own text.
"""

from __future__ import annotations

import re

from vipray.data.prompts import Prompt
from vipray.verifiers.answer_text import CutAnswerError, last_sentence, marked_answer, own_words
from vipray.verifiers.latex_text import tidy
from vipray.verifiers.protocol import Score

_MAX_CHARACTERS = 1_000
_ALONE = re.compile(r"(?:(?:option|choice|answer) )?[(\[]? ?([A-Za-z]) ?[)\]]? ?[.:)]? ?", re.IGNORECASE)
_SEPARATOR = re.compile(r" ?[,;/&] ?(?:and )?| and ")
_TOGETHER = re.compile(r"[A-Z]{2,6}")
_WITH_TEXT = re.compile(
    r"(?:(?:option|choice) )?(?:\(([A-Z])\)|([A-Z])(?=\s*[.:)\],]\s|[.:)\]]\S)|([B-HJ-Z])(?=\s+\S))(?P<rest>.*)",
    re.DOTALL,
)
_REASON = re.compile(r"\b(?:because|since|as)\b", re.IGNORECASE)
_AND_ANOTHER = re.compile(r"[\s.:)]*(?:(?:and|or)\b|[,/]\s*\(?(?:[A-Z]\)|[A-Z](?![a-zA-Z'])))")
_NOT_ANOTHER = re.compile(r"[,;]? (?:and )?not (?:option )?\(?[A-Z]\)?(?![\w'])")
_ANOTHER = re.compile(
    r"[(\[][A-Za-z][)\]]|(?<![\w'’])(?:[B-HJ-Z](?![\w'’-])|[AI](?=\s*(?:[.:)\],;/&|+]|$))|[a-z]\))"
    r"|\b(?:or|and|vs\.?|versus|then|but|be|option|choice|maybe|perhaps|with|is) \(?[A-Za-z](?![\w'’-])"
    r"|^[\s.:)]*(?:and|or|vs|versus)\b"
)
_DENIES = re.compile(
    r"\b(?:not|never|cannot|neither|nor|wrong|incorrect|false|eliminat\w*|exclud\w*|rul(?:e|es|ed|ing) out|reject\w*"
    r"|discard\w*|avoid\w*|doubt\w*|either|between|unlikely|except|maybe|perhaps|possibly|might|could)\b|n['’]t\b",
    re.IGNORECASE,
)
_LETTER_FIRST = re.compile(r"\(?[A-Z][.):]\s")
_OPTION = re.compile(r"\b(?:option|choice|select|choose|pick)\s+(?:is\s+)?\**\(?([A-Z])\)?(?![a-zA-Z'])")


class MultipleChoiceVerifier:
    """Verifier of answers that are letters of options."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for exactly the gold's letters, else 0."""
        gold = read_letters(prompt.answer)
        if not gold:
            return Score.unscorable(self.check_gold(prompt) or "")
        try:
            answer = _answer(own_words(prompt.text, completion))
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        if answer and tidy(answer) == tidy(prompt.answer):
            return Score.correct(answer)
        letters = read_letters(answer)
        if not letters or _hedges(answer, letters):
            return Score.wrong(answer, "no letter of an option was found")
        return Score.correct(answer) if letters == gold else Score.wrong(answer)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None where the gold names options by letters, else the reason."""
        return None if read_letters(prompt.answer) else "the gold names no option by its letter"


def read_letters(text: str) -> frozenset[str]:
    r"""Return the letters that a text names as its choice; empty where it is anything else.

    >>> sorted(read_letters("(C)")), sorted(read_letters(r"\text{A and C}")), sorted(read_letters("A triangle"))
    (['C'], ['A', 'C'], [])
    """
    if len(text) > _MAX_CHARACTERS:
        return frozenset()
    text = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", tidy(text)).strip(" .").split())
    alone = _ALONE.fullmatch(text)
    if alone:
        return frozenset(alone.group(1).upper())
    parts = [_ALONE.fullmatch(part) for part in _SEPARATOR.split(text)]
    if all(parts):
        return frozenset(part.group(1).upper() for part in parts if part)
    if _TOGETHER.fullmatch(text) and len(set(text)) == len(text) and list(text) == sorted(text):
        return frozenset(text)
    named = _WITH_TEXT.fullmatch(text)
    if named is None or _AND_ANOTHER.match(named["rest"]):
        return frozenset()
    return frozenset(next(group for group in named.groups()[:3] if group))


def _hedges(answer: str, letters: frozenset[str]) -> bool:
    """Whether an answer that names one letter denies it, or names another one behind it."""
    text = tidy(answer)
    named = _WITH_TEXT.fullmatch(text)
    if len(letters) != 1 or named is None:
        return False
    rest = _NOT_ANOTHER.sub("", _REASON.split(named["rest"], maxsplit=1)[0])
    return bool(_ANOTHER.search(rest) or _DENIES.search(rest))


def _answer(text: str) -> str:
    marked = marked_answer(text)
    if marked is not None:
        return marked
    sentence = last_sentence(text)
    if _LETTER_FIRST.match(text.strip()) and "\n" not in text.strip():
        return text.strip()
    options = _OPTION.findall(sentence)
    if options and not _DENIES.search(sentence) and not _ANOTHER.search(_OPTION.sub("#", sentence)):
        return str(options[0]) if len(set(options)) == 1 else ""
    return sentence if sentence.strip(" .*_`") == text.strip(" .*_`\n") else ""
