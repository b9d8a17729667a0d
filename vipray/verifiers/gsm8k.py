r"""Grade-school word problems, whose solutions end in `#### n`.

The gold is the number after its last `####` (or `A:`), with sign and separators; without a marker, the whole text.

The answer is looked for in this order, after thinking and an echo of the prompt are cut off:

1. the number right behind the first `####`: what a model babbles after its answer does not change it, so a run-on
   with a second question and a second `####` is judged by the first. (`#### Step 1` and `#### 1. Add` are headings.)
2. what is marked as the answer (see `answer_text`), or the last line `A: …`;
3. the last number of the text.

Of a marked answer counts its value where it is one expression, else the number after its last `=`, the number that it
begins with, or its only number. Two alternatives (`5 or 6`) and ranges are no answer. Comparison is exact, on
fractions; currency, percent signs and units are dropped.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from fractions import Fraction

from vipray.data.prompts import Prompt
from vipray.verifiers.answer_text import CutAnswerError, marked_answer, own_words
from vipray.verifiers.latex_text import tidy
from vipray.verifiers.math_forms import is_name, read_form
from vipray.verifiers.numbers import SCANNED_NUMBER, TooCostlyError, exact_value
from vipray.verifiers.protocol import Score

_MARKER = re.compile(r"####[ \t]*\**[ \t]*(?:answer:?|the answer is)?[ \t]*(?=[-−$€£¥\\]*\s?[\d.])", re.IGNORECASE)
_HEADING = re.compile(r"\d+[.):](?:\s+\S|$)")
_LAST_LINE = re.compile(r"^A:[ \t]*(\S.*)$", re.MULTILINE)
_ALTERNATIVE = re.compile(r"\s*(?:,|or|to|and|through|-|–|\+|\*|/|x|times|minus|plus)\s*[$€£]?\s*\d", re.IGNORECASE)
_MAX_CHARACTERS = 1_000  # of a text that gives one number
_SCALE = re.compile(r"\s*(hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


class Gsm8kVerifier:
    """Verifier of answers that are one number."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for the gold's number, else 0."""
        gold = gold_number(prompt.answer)
        if gold is None:
            return Score.unscorable(self.check_gold(prompt) or "")
        try:
            answer = extract_number_text(own_words(prompt.text, completion))
            number = None if answer is None else read_number(answer)
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        except TooCostlyError as error:
            return Score.refused("", str(error))
        if answer is None or number is None:
            return Score.wrong(answer or "", "no single number was found")
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


def extract_number_text(text: str) -> str | None:
    r"""Return the text that holds the answer's number, or None.

    Raises:
        CutAnswerError: the text stops inside its answer.

    >>> extract_number_text("9*2=18\n#### 18\nso it is 20"), extract_number_text("It costs $29.00.")
    ('18', '$29.00')
    """
    for marker in _MARKER.finditer(text):
        line = text[marker.end() :].partition("\n")[0].strip()
        if not _HEADING.match(line):
            number = SCANNED_NUMBER.match(line)
            return number.group().strip() if number and not _ALTERNATIVE.match(line, number.end()) else line
    lines = _LAST_LINE.findall(text)
    marked = marked_answer(text)
    if marked is not None or lines:
        return marked if marked is not None else lines[-1].strip()
    last = next(iter(deque(SCANNED_NUMBER.finditer(text), maxlen=1)), None)
    if last is None:
        return None
    scale = _SCALE.match(text, last.end())
    return text[last.start() : scale.end() if scale else last.end()].strip()


def read_number(text: str) -> Fraction | None:
    r"""Return the one number that a short text gives, or None.

    Raises:
        TooCostlyError: its value does not fit into memory.

    >>> read_number(r"\$1{,}250"), read_number("72, in total"), read_number("5 or 6"), read_number("6*7 = 42 pens")
    (Fraction(1250, 1), Fraction(72, 1), None, Fraction(42, 1))
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    value = _whole_number(text)
    return value if value is not None else _number_in_words(tidy(text))


def _whole_number(text: str) -> Fraction | None:
    """Return the number where the text is that number, perhaps with its name and unit, and nothing else."""
    plain = _plain_number(text)
    if plain is not None:
        return plain
    form = read_form(text)
    if form is not None and form.kind == "relation" and form.text == "=":
        left, form = form.items
        if not is_name(left.text) and exact_value(left.text) is None:
            return None
    return exact_value(form.text) if form is not None and form.kind == "value" else None


def _plain_number(text: str) -> Fraction | None:
    """Return the number where the text is nothing else; most answers are."""
    text = text.strip().strip("$ .")
    return exact_value(text) if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?", text) else None


def _number_in_words(text: str) -> Fraction | None:
    after_equals = text.rpartition("=")[2] if "=" in text else text
    numbers = list(SCANNED_NUMBER.finditer(after_equals))
    if not numbers:
        return None
    first = numbers[0]
    if _ALTERNATIVE.match(after_equals, first.end()):
        return None
    begins = not after_equals[: first.start()].strip(" $:*~\\")
    return _scanned(first, after_equals) if begins or len(numbers) == 1 else None


def _scanned(match: re.Match[str], text: str) -> Fraction | None:
    number = exact_value(re.sub(r"[$€£¥\s,]", "", match.group().replace("−", "-")))
    scale = _SCALE.match(text, match.end())
    return number * 10 ** _POWERS[scale.group(1).lower()] if number is not None and scale else number
