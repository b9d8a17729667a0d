"""Short answers to questions, by exact match after normalisation, or by the F1 of their words.

The answer is what the last `<answer>` tag of the response holds (a tag in an echo of the prompt is not the response),
else what follows the last `Answer:` or `answer is`, else the whole response.

Normalised is as in SQuAD: lower case, without punctuation, without `a`, `an`, `the`, with single spaces. It is
stricter where that would pay for something else: the point and the sign of a number stay (`1.5` is not `15`, `-3` is
not `3`), what joins two digits (`9/11`, `10:30`), `<`, `>` and `^`, and `+`, `#` and a last `-` after a letter (`C++`,
`O-`). An article at the very end is a name (`Vitamin A`). Where nothing would be left of the gold, both sides keep
their articles, and where still nothing is left (`!!!`), their punctuation: an empty answer matches nothing.
The best over the gold and its aliases counts. Exact match is never above F1.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from vipray.data.prompts import Prompt
from vipray.records import Outcome
from vipray.verifiers.answer_text import CutAnswerError, marked_answer, own_words, tagged_answer
from vipray.verifiers.protocol import Score

Metric = Literal["em", "f1"]

_ARTICLE = re.compile(r"\b(?:a|an|the)\b(?!(?:\s+(?:a|an|the))*\s*$)")  # `Vitamin A` ends in a name
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MINUS_APART = re.compile(r"(?<![\w)])-\s+(?=\.?\d)")
_KEPT = re.compile(
    r"(?<=\d)[.,:/'-](?=\d)|(?<![\w)])-(?=\.?\d)|(?<!\w)\.(?=\d)|(?<=[^\W\d_])[+#]+|(?<=[^\W\d_])-(?!\w)|[<>^]"
)
_REMOVED = "\0"
_BETWEEN_DIGITS = re.compile(rf"(?<=\d){_REMOVED}+(?=\d)")
_ABBREVIATED = re.compile(r"(?:.*\s)?(?:St|Ste|Dr|Mr|Mrs|Ms|Jr|Sr|Prof|Mt|Ft|Gen|Col|Lt|Capt|Sgt|Rev|Gov|Sen|Rep|Hon)")
_INITIALS = re.compile(r"(?:[A-Z]\.\s)*[A-Z]")
_SENTENCE_REST = re.compile(r"\. [A-Z][^\s.]*(?: [^\s.]+){0,3}(?=\.(?:\s|$)|\s*$)")


class QaVerifier:
    """Verifier of short free-text answers.

    Args:
        metric: `em` pays 1 for an exact match and 0 otherwise; `f1` pays the F1 of the words.
    """

    def __init__(self, metric: Metric = "em") -> None:
        self._metric = metric

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward exact match, or F1, over the gold and its aliases; `correct` means an exact match."""
        reason = self.check_gold(prompt)
        if reason is not None:
            return Score.unscorable(reason)
        try:
            answer = extract_answer(own_words(prompt.text, completion))
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        golds = [gold for gold in (prompt.answer, *prompt.aliases) if gold.strip()]
        if exact_match(answer, golds):
            return Score.correct(answer)
        overlap = f1(answer, golds)
        return Score(overlap if self._metric == "f1" else 0.0, Outcome.WRONG, answer, f"F1 is {overlap:.4f}")

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None unless the gold and all its aliases are empty."""
        return None if any(gold.strip() for gold in (prompt.answer, *prompt.aliases)) else "the gold is empty"


def extract_answer(text: str) -> str:
    """Return what a response gives as its answer."""
    tagged = tagged_answer(text)
    if tagged is not None:
        return tagged
    marked = marked_answer(text)
    if marked is None:
        return text.strip()
    return _with_abbreviated(text, marked)


def _with_abbreviated(text: str, marked: str) -> str:
    """Return an answer that was cut at the point of `St.` or of initials with what follows there."""
    end = text.rfind(marked) + len(marked)
    while text.startswith(". ", end) and (_ABBREVIATED.fullmatch(marked) or _INITIALS.fullmatch(marked)):
        following = _SENTENCE_REST.match(text, end)
        if following is None:
            break
        marked, end = marked + following.group(), following.end()
    return marked


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether an answer is one of the golds after normalisation.

    >>> exact_match("the beatles.", ["The Beatles"]), exact_match("the", ["A"]), exact_match("15", ["1.5"])
    (True, False, False)
    """
    return any(_words(answer, gold) == _words(gold, gold) != [] for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Return the best F1 of an answer's words with a gold's, in [0, 1].

    >>> round(f1("City of New York", ["New York City"]), 4)
    0.8571
    """
    return max((_f1(_words(answer, gold), _words(gold, gold)) for gold in golds), default=0.0)


def _f1(answer: list[str], gold: list[str]) -> float:
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold)) if common else 0.0


def _words(text: str, gold: str) -> list[str]:
    """Return the words of `text`, normalised as far as leaves something of `gold`."""
    for normalise in (_normalised, _with_articles):
        if normalise(gold):
            return normalise(text).split()
    return text.casefold().split()


def _normalised(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", _with_articles(text)).split())


def _with_articles(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-").replace("–", "-").replace("⁄", "/")
    text = _MINUS_APART.sub("-", _THOUSANDS.sub("", text)).replace(_REMOVED, " ")
    kept = {index for match in _KEPT.finditer(text) for index in range(*match.span())}
    marked = "".join(
        _REMOVED if _is_punctuation(character) and index not in kept else character
        for index, character in enumerate(text)
    )
    return " ".join(_BETWEEN_DIGITS.sub(" ", marked).replace(_REMOVED, "").split())


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "P" or character in "$+<=>^`|~"
