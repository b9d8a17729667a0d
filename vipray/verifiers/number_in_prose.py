"""A number among words: which one it is, and whether the words leave it as it is.

`5 apples` and `so that is 5.` give 5. `5 dozen`, `not 5`, `less than 5`, `5 or 6`, `5^2` and `5:30` give nothing: what
stands around a number has to be prose that is known to change nothing about it.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

from vipray.verifiers.numbers import SCANNED_NUMBER, exact_value

_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(r"\s*(hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
_MIXED = re.compile(r"(?<![\w.,)^/])(?:[-−]\s?)?[$€£¥]?\d{1,9}[ \t]{1,3}\d{1,9}/\d{1,9}(?![\w/^]|[.,]\d)")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n")
_REASON = re.compile(r"\b(?:because|since)\b", re.IGNORECASE)
_ASIDE = re.compile(r"(?<=\s)\(([^()]*)\)")
_EMPHASIS_END = re.compile(r"[*_`]+(?=[\s.,)%]|$)")
_PROSE = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ\s,.'’\"“”%$€£¥₹°/!()\[\]*_`-]*")
_OPERATOR = re.compile(r"(?<![a-z])!|(?:^|(?<=\s))[*_`/–-](?:\s|$)|(?:^|[^a-z])[*/-](?![a-z]{2})", re.IGNORECASE)
_ATTACHED_UNIT = re.compile(
    r"(?:cm|mm|km|kg|mg|ml|g|l|ft|in|lbs?|oz|mph|kph|hrs?|h|mins?|secs?|s|am|pm)(?![a-z])", re.IGNORECASE
)
_MAX_CHARACTERS = 1_000  # of words behind a number
_LONE_LETTERS = frozenset("aimsglh")  # words and units; any other may be a variable or a factor
_COUNTS = (
    r"half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|elevenths?|twelfths?"
    r"|\w+(?:eenths?|tieths?|redths?|sandths?|illionths?)|hundreds?|thousands?|\w*illions?|lakhs?|crores?|grand|kilo"
    r"|bn|bil|mil|mn|dozens?|score|pairs?|couple|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|zero"
)
_CHANGES_WHAT_IS_BEFORE = re.compile(
    rf"\b(?:{_COUNTS}|plus|minus|squared|cubed|factorial|root|sqrt|pi|power|remainder|point|mod|modulo|base|over|under"
    r"|above|below|beyond|less|fewer|greater|than|(?:and|even|much|far|many) more|more (?:or|times)|fold"
    r"|gross(?! [a-z])|or|nor|not|no|never|cannot|negative|deficit|debt|bce?|divided"
    r"|multiplied|twice|double|triple|if|unless|when|otherwise|except|maybe|perhaps|possibly|probably|either|neither"
    r"|wrong|false|incorrect|instead|but|vs|versus|approximately|roughly|doubt|times(?!\s+(?:as|per|each|a|in)\b|[\s.]*$)"
    r")\b|n['’]t\b",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not|never|cannot|neither|nor|doubt|wrong|false|incorrect|unlikely|either|between|maybe|perhaps|possibly)\b"
    r"|n['’]t\b|\b(?:rules?|ruled|ruling) out\b|\b(?:reject|exclud|discard)\w*|[!<>]=|[≠≤≥<>≈∼±√\\]|(?:^|\s)~",
    re.IGNORECASE,
)
_CHANGES_WHAT_FOLLOWS = re.compile(
    r"(?:\b(?:than|about|around|approximately|roughly|nearly|near|close to|almost|over|under|above|below|beyond"
    r"|least|most|exceeds?"
    r"|up to|times|plus|minus|negative|half|twice|double|triple|half of|third of|quarter of|x"
    r"|(?:root|square|cube|multiple|factor|sum|product"
    r"|log|ln|sqrt|sin|cos|tan|factorial|reciprocal|inverse|opposite)(?: of)?)|[\w)]\(|\d\s*[:x]"
    r"|[-+^×÷·~&|;–—/]|\d,?|\d\s+(?!(?:is|are|was|were|equals|gives|leaves|makes)\b)[a-z]+,?(?:\s+and)?)[\s$€£¥*]*$",
    re.IGNORECASE,
)


def read_prose(text: str) -> Fraction | None:
    """Return the number that a short text begins with, or its only one, or what its last `=` gives; else None.

    Raises:
        TooCostlyError: its value does not fit into memory.

    >>> read_prose("72, in total"), read_prose("5 million dollars"), read_prose("so 2 1/2 hours")
    (Fraction(72, 1), Fraction(5000000, 1), Fraction(5, 2))
    >>> read_prose("5 dozen"), read_prose("not 5"), read_prose("5 or 6"), read_prose("5:30"), read_prose("3 = 4")
    (None, None, None, None, None)
    """
    left, _, right = text.rpartition("=")
    match = _MIXED.search(right) or SCANNED_NUMBER.search(right)
    if match is None or _DENIES.search(left + right[: match.start()]):
        return None
    head = right[: match.start()].strip(" $:*~\\_`")
    if head and (not _PROSE.fullmatch(head.replace(":", "")) or _CHANGES_WHAT_FOLLOWS.search(head)):
        return None
    value = _value(match.group(), right[match.end() :])
    claimed = exact_value(left.rpartition("=")[2].strip("$ ")) if left else value
    return value if claimed in (None, value) else None


def last_number(text: str) -> tuple[str, Fraction | None]:
    """Return the last number of a text as it is written, and its value; None where its sentence changes it.

    Raises:
        TooCostlyError: its value does not fit into memory.

    >>> last_number("It costs $29.00."), last_number("It is 12-7.")
    (('$29.00', Fraction(29, 1)), ('7', None))
    """
    last = next(iter(deque(SCANNED_NUMBER.finditer(text), maxlen=1)), None)
    if last is None:
        return "", None
    near = max(0, last.start() - 200)
    match = next((mixed for mixed in _MIXED.finditer(text, near) if mixed.end() == last.end()), last)
    head = text[near : match.start()].rpartition("\n")[2]
    clause = re.split(r"[,;=]|\.\s", head)[-1]
    found, behind = match.group().strip(), text[match.end() :]
    if _DENIES.search(clause) or _CHANGES_WHAT_FOLLOWS.search(head):
        return found, None
    return found, _value(found, behind)


def _value(number: str, behind: str) -> Fraction | None:
    """The value of a number with the words behind it; None where they may change it."""
    value = exact_value(re.sub(r"[$€£¥,]", "", number.strip().replace("−", "-")))
    scale = _SCALE.match(behind)
    if value is None or number.strip().endswith("."):
        return None
    if scale:
        value, behind = value * 10 ** _POWERS[scale.group(1).lower()], behind[scale.end() :]
    return value if _changes_nothing(behind, value, is_money=bool(re.search(r"[$€£¥]", number))) else None


def _changes_nothing(behind: str, value: Fraction, *, is_money: bool) -> bool:
    behind = _SENTENCE_END.split(behind, maxsplit=1)[0]
    if len(behind) > _MAX_CHARACTERS:
        return False
    behind = _REASON.split(behind, maxsplit=1)[0]
    behind = _EMPHASIS_END.sub("", behind, count=1) if _EMPHASIS_END.match(behind) else behind
    behind = _ASIDE.sub(lambda aside: "" if exact_value(aside.group(1)) == value else aside.group(), behind)
    if not _PROSE.fullmatch(behind.replace("\\%", "%").replace("\\$", "$")) or _OPERATOR.search(behind):
        return False
    if behind[:1].isalpha() and not _ATTACHED_UNIT.match(behind):
        return False
    lone = {
        word if word == "M" else word.lower()
        for word in re.findall(r"(?<![a-z'’])[a-z](?![a-z'’])", behind, re.IGNORECASE)
    }
    return lone <= _LONE_LETTERS - ({"m"} if is_money else set()) and not _CHANGES_WHAT_IS_BEFORE.search(behind)
