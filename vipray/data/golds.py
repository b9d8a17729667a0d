"""Right answers from files, as strings to the digit: '034', 2**70 and 27.0 stay what they are."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from vipray.errors import ConfigError


class JsonNumber(str):
    """A number of a JSON file, as it is written there."""

    __slots__ = ()


NOT_A_NUMBER = ("NaN", "Infinity", "-Infinity")  # how pandas and others write a missing value


def exact_answers(value: Any, place: str) -> tuple[str, ...]:
    """Return the right answer and then its aliases; nothing where the answer is missing.

    Args:
        value: a string, a number, a list of these, or `{"target": …}` as sets for question answering have it.
        place: file and row, for messages.

    Raises:
        ConfigError: a binary float, whose digits may not be the answer's, or something that is no answer.

    >>> exact_answers("034", "f row 1"), exact_answers(2**70, "f row 2"), exact_answers({"target": ["a", "b"]}, "f")
    (('034',), ('1180591620717411303424',), ('a', 'b'))
    """
    if value is None or (isinstance(value, JsonNumber) and value in NOT_A_NUMBER):
        return ()
    if isinstance(value, str):
        return (encodable(str(value), place),) if value.strip() else ()
    if isinstance(value, dict) and "target" in value:
        return exact_answers(value["target"], place)
    if isinstance(value, list):
        answers = [answer for item in value for answer in exact_answers(item, place)]
        return tuple(dict.fromkeys(answers))
    if isinstance(value, Decimal):
        return (format(value, "f"),)
    if isinstance(value, int) and not isinstance(value, bool):
        return (str(value),)
    return _refuse(value, place)


def _refuse(value: Any, place: str) -> tuple[str, ...]:
    if isinstance(value, float):
        if value != value:
            return ()
        raise ConfigError(
            f"{place}: the answer {value!r} is stored as a binary float, which may have lost digits: "
            "write that column as strings"
        )
    shown = repr(value)[:80]
    raise ConfigError(f"{place}: the answer must be a string or a number, got {shown}: write it as a string")


def encodable(text: str, place: str) -> str:
    """Return a text that UTF-8 can hold; raise `ConfigError` for one that it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place}: a text holds half of a surrogate pair, which is no character") from None
    return text
