r"""Grade-school word problems, whose solutions end in `#### n`.

The gold is the number after its last `####` (or `A:`), with sign and separators; without a marker, the whole text.

The answer is looked for in this order, after thinking and an echo of the prompt are cut off:

1. the line of the first `####`: what a model babbles after its answer does not change it, so a run-on with a second
   question and a second `####` is judged by the first. (`#### Step 1` and `#### 1. Add` are headings.)
2. what is marked as the answer (see `answer_text`), or the last line `A: …`;
3. the last number of the text.

Of such a text counts its value where it is one expression, else the number after its last `=`, the number that it
begins with, or its only number; and only where no word or sign beside it makes it another (see `number_in_prose`): two
alternatives (`5 or 6`), ranges, limits and denials are no answer. Comparison is exact, on fractions; currency, percent
signs and units are dropped.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from vipray.data.prompts import Prompt
from vipray.verifiers.answer_text import CutAnswerError, marked_answer, own_words
from vipray.verifiers.latex_text import tidy
from vipray.verifiers.math_forms import is_name, read_form
from vipray.verifiers.number_in_prose import last_number, read_prose
from vipray.verifiers.numbers import TooCostlyError, exact_value
from vipray.verifiers.protocol import Score

_MARKER = re.compile(
    r"####[ \t]{0,20}\*{0,3}[ \t]{0,20}(?:answer:?|the answer is)?[ \t]{0,20}(?=[-−$€£¥\\]{0,4}\s?[\d.])", re.IGNORECASE
)
_NOTE = re.compile(r"<<[^<>\n]{0,200}>>")  # the calculator's notes of GSM8K's solutions
_HEADING = re.compile(r"\d+[.):]\s+\S")
_LAST_LINE = re.compile(r"^A:[ \t]*(\S.*)$", re.MULTILINE)
_MAX_CHARACTERS = 1_000  # of a text that gives one number
_ROUGHLY = re.compile(r"(?:^|\s)~\s*[$€£¥]?\d|[≈∼]|\\(?:approx|sim)(?![a-z])")
_PLAIN = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")


class Gsm8kVerifier:
    """Verifier of answers that are one number."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for the gold's number, else 0."""
        gold = gold_number(prompt.answer)
        if gold is None:
            return Score.unscorable(self.check_gold(prompt) or "")
        try:
            answer, number = extract_number(own_words(prompt.text, completion))
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        except TooCostlyError as error:
            return Score.refused("", str(error))
        if number is None:
            return Score.wrong(answer, "no single number was found")
        return Score.correct(answer) if number == gold else Score.wrong(answer)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None where the gold holds a number, else the reason."""
        return None if gold_number(prompt.answer) is not None else "the gold holds no number after ####"


@functools.lru_cache(maxsize=65536)
def gold_number(gold: str) -> Fraction | None:
    r"""Return the number of a gold, or None.

    >>> gold_number("2-5=<<2-5=-3>>-3\n#### -3"), gold_number("see above")
    (Fraction(-3, 1), None)
    """
    _, marked, after = gold.rpartition("####")
    lines = _LAST_LINE.findall(gold)
    text = after if marked else lines[-1] if lines else gold
    try:
        return _whole_number(text)
    except TooCostlyError:
        return None


def extract_number(text: str) -> tuple[str, Fraction | None]:
    r"""Return the text that holds the answer, empty where there is none, and its one number, if it gives one.

    Raises:
        CutAnswerError: the text stops inside its answer.
        TooCostlyError: the number does not fit into memory.

    >>> extract_number("9*2=18\n#### 18 pens\nso it is 20"), extract_number("It costs $29.00.")
    (('18 pens', Fraction(18, 1)), ('$29.00', Fraction(29, 1)))
    """
    text = _NOTE.sub("", text)
    for marker in _MARKER.finditer(text):
        end = text.find("\n", marker.end())
        line = text[marker.end() : end if end >= 0 else None].strip()
        if not _HEADING.match(line):
            return line, read_number(line)
    marked = marked_answer(text)
    lines = _LAST_LINE.findall(text) if marked is None else []
    answer = lines[-1].strip() if lines else marked
    return last_number(text) if answer is None else (answer, read_number(answer))


def read_number(text: str) -> Fraction | None:
    r"""Return the one number that a short text gives, or None.

    Raises:
        TooCostlyError: its value does not fit into memory.

    >>> read_number(r"\$1{,}250"), read_number("72, in total"), read_number("5 or 6"), read_number("6*7 = 42 pens")
    (Fraction(1250, 1), Fraction(72, 1), None, Fraction(42, 1))
    """
    if len(text) > _MAX_CHARACTERS or _ROUGHLY.search(text):
        return None
    value = _plain_number(text)
    if value is None:
        value = read_prose(text)
    if value is None:
        value = _whole_number(text)
    return value if value is not None else read_prose(tidy(text))


def _whole_number(text: str) -> Fraction | None:
    """Return the number where the text is that number, perhaps with its name and unit, and nothing else."""
    plain = _plain_number(text)
    if plain is not None:
        return plain
    form = read_form(text)
    claimed = None
    if form is not None and form.kind == "relation" and form.text == "=":
        left, form = form.items
        claimed = exact_value(left.text)
        if claimed is None and not is_name(left.text):
            return None
    value = exact_value(form.text) if form is not None and form.kind == "value" else None
    return value if claimed in (None, value) else None


def _plain_number(text: str) -> Fraction | None:
    """Return the number where the text is nothing else; most answers are."""
    text = text.strip().strip("$ .")
    return exact_value(text) if _PLAIN.fullmatch(text) else None
