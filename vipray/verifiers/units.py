r"""What stands behind a number: units, percent signs, words of scale, and prose that changes nothing."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from vipray.verifiers.numbers import exact_value

_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_DEGREES = re.compile(r"\^\\circ\s*(?:\\text\{\s*([CFK])\s*\}|([CF]))?\s*$")
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*(\^\s*(?:\{\s*-?\d+\s*\}|\d))?\s*$")
_SHORT_UNITS = (
    "in|of|to|at|on|per|by|he|we|she|the|for|each|all|cm|mm|km|kg|mg|ml|mL|ft|lb|lbs|oz|mph|kph|m/s|km/h|mi/h|ft/s|g/mL|g/cm|hr|hrs|sq|min|sec|days?"
    "|men|boys?|cups?|eggs?|hens?|cows?|pigs?|dogs?|cats?|cars?|bus|pens?|box|bags?|jars?|cans?|bees?|ants?|kids?|yen"
    "|feet|foot|units?|inch|mile|girl|year|hour|week"
)
_WORD_UNIT = re.compile(
    rf"(?P<head>.*?(?:[\d)}}%]|\\pi))(?:\s*,\s*|\s+|\s*/\s*(?=[a-z]{{3}})|(?<=\d)(?=(?:cm|mm|km|kg|mg|ml|mL|ft|mph|lbs?|oz)\b))"
    rf"(?P<tail>(?:(?=[a-zA-Z]*[aeiouAEIOU])[a-zA-Z]{{4,}}|{_SHORT_UNITS})\b[a-zA-Z /'.,-]*"
    r"(?:\^\s*(?:\{\s*\d+\s*\}|\d))?)\s*",
    re.DOTALL,
)
_CHANGES_VALUE = re.compile(
    r"\b(?:is|are|was|were|be|plus|minus|times(?!\s+(?:as|per|each|a)\b|\s*$)|squared|cubed|half|halves|thirds?|quarters?"
    r"|fifths?|tenths?|hundredths?|dozens?|score|pairs?|one|two|three|four|five|six|seven|eight|nine|ten|more|less"
    r"|fewer|than|not|never|no|over|divided|negative|multiplied|twice|double|and|or|if|unless|when|otherwise|except|maybe"
    r"|perhaps|either|neither|factorial|root|power|remainder|point|wrong|false|incorrect|cannot|\w+n['’]t|fails?|failed|impossible|doubtful|unlikely|invalid|rejected|excluded|base|mod|modulo|instead|but"
    r"|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|zero|couples?|trios?|gross|once|thrice|third"
    r"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|\w*illion|n)ths?|\w*illions?"
    r"|thousands|hundreds|lakhs?|crores?|grand|kilos?|mega|giga|milli|micro|nano|centi|deci|hecto|deca|k|bn|mn|mil"
    r"|below|under|beneath|underground|deficits?|debts?|overdrawn|in the (?:red|hole)|b\.?\s?c\.?(?:e\.?)?|basis|bps"
    r"|january|february|(?-i:March|May)|april|june|july|august|september|october|november|december"
    r"|added|subtracted|deducted|raised|repeating|recurring|infinity|inverse|reciprocal|conjugate|tens|ones|too|up"
    r"|onwards?|upwards?|downwards?|beyond|googol|permille?|mille|ppm|choose|about|almost|nearly|approximately|around|roughly|plus.minus)\b",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\\$|[$€£¥₹])\s*")
_CURRENCY_END = re.compile(r"\s*(?:\\\$|[$€£¥₹])$")
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_PERCENT = re.compile(r"per ?cent(?:age points?)?\b", re.IGNORECASE)
_SPELLINGS = {
    spelling: unit
    for unit, spellings in {
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
        "mg": "milligram", "g": "gram", "kg": "kilogram", "ml": "milliliter millilitre", "l": "liter litre",
        "in": "inch inche inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "lb": "pound lbs", "oz": "ounce",
        "s": "second sec secs", "min": "minute mins", "h": "hour hr hrs", "mi/h": "mph", "km/h": "kph kmh kmph",
        "dollar": "usd buck", "cent": "¢", "euro": "eur",
    }.items()
    for spelling in spellings.split()
}  # fmt: skip
_KNOWN_UNITS = set(_SPELLINGS.values()) - {"in"}
_DIMENSIONS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_NO_UNITS = ("in", "of", "for", "each")  # in front of other words
_PER = ("per", "a", "an", "each", "every")


class Measured(NamedTuple):
    """An expression, its unit in lower case (empty where there is none), and whether a percent sign stood there."""

    text: str
    unit: str = ""
    percent: bool = False


def without_words(text: str) -> Measured:
    r"""Take words off the end of a text, where they are a unit or prose that changes nothing.

    Words of scale are worked in. Words that may change the value (`not`, `or`, `dozen`) stay where they are.

    >>> without_words("72, in total"), without_words("5 million dollars").text, without_words("6 or more").unit
    (Measured(text='72', unit='in total', percent=False), '5*10^{6}', '')
    """
    match = _WORD_UNIT.fullmatch(text)
    if match is None:
        return Measured(text)
    head, tail = match["head"].strip(), match["tail"].strip(" .,")
    scale, _, rest = tail.partition(" ")
    if scale.lower() in _SCALES and exact_value(_CURRENCY.sub("", head)) is not None:
        head, tail = f"{head}*10^{{{_SCALES[scale.lower()]}}}", rest
    if changes_value(tail):
        return Measured(text)
    return Measured(head, "", True) if _PERCENT.match(tail) else Measured(head, unit_name(tail))


def split_unit(text: str) -> Measured:
    r"""Take degrees, a unit in `\text{…}`, a percent sign and a currency off a single expression.

    >>> split_unit(r"15\text{ cm}^{2}")
    Measured(text='15', unit='cm^2', percent=False)
    >>> split_unit("28%").percent, split_unit(r"\$18").text
    (True, '18')
    """
    text, unit = _split_degrees(text)
    text, text_unit, percent = _split_text_unit(text)
    if text.endswith("%"):
        text, percent = text[:-1].strip(), True
    sign = _CURRENCY.match(text) or _CURRENCY_END.search(text)
    if sign:
        unit = unit or _CURRENCIES[sign.group().strip()[-1]]
        text = _CURRENCY_END.sub("", _CURRENCY.sub(r"\1", text))
    return Measured(text, text_unit or unit, percent)


def _split_degrees(text: str) -> tuple[str, str]:
    match = _DEGREES.search(text)
    if match is None or not text[: match.start()].strip() or _ANGLE_FUNCTION.search(text):
        return text, ""
    return text[: match.start()].strip(), "degree" + (match.group(1) or match.group(2) or "").lower()


def _split_text_unit(text: str) -> Measured:
    match = _TEXT_UNIT.search(text)
    head = text[: match.start()].strip() if match else ""
    if match is None or not head:
        return Measured(text)
    name = match.group(1).strip()
    first, _, rest = name.partition(" ")
    if first.lower() in _SCALES and not changes_value(rest):
        return Measured(f"({head})*10^{{{_SCALES[first.lower()]}}}", unit_name(rest))
    if _PERCENT.fullmatch(name):
        return Measured(head, "", True)
    if changes_value(name) or re.search(r"\d", name):
        return Measured(text)
    return Measured(head, unit_name(name + (match.group(2) or "")))


def changes_value(words: str) -> bool:
    """Whether words behind a number may make it another number: `dozen`, `eighths`, `or more`, `below zero`.

    >>> changes_value("eighths of an inch"), changes_value("months in the north")
    (True, False)
    """
    return bool(_CHANGES_VALUE.search(words)) or any(word in _SCALES for word in words.lower().split())


def unit_name(unit: str) -> str:
    """Return a unit in lower case, in the singular, with single spaces."""
    unit = re.sub(r"[\s.,]+", " ", unit.replace("{", "").replace("}", "")).replace(" ^", "^").strip().lower()
    first, _, rest = unit.partition(" ")
    if len(first) > 3 and first.endswith("s") and not first.endswith("ss"):
        first = first[:-1]
    return f"{first} {rest}".strip()


def same_unit(first: str, second: str) -> bool:
    """Whether two units, as `unit_name` gives them, may be the same: equal, or one of them says less.

    >>> same_unit("centimeter", "cm"), same_unit("square feet", "ft^2"), same_unit("mile", "mile per hour")
    (True, True, False)
    >>> same_unit("apple", "apple in total"), same_unit("", "cm")
    (True, True)
    """
    (unit, rest), (other, other_rest) = _unit_and_rest(first), _unit_and_rest(second)
    if not unit or not other:
        return True
    return unit == other and (rest == other_rest or not rest or not other_rest)


@functools.lru_cache(maxsize=4096)
def _unit_and_rest(name: str) -> tuple[str, str]:
    """Return a unit in one spelling, such as `ft^2` or `mi/h`, and the words that follow it."""
    words = re.sub(r"\s*/\s*", " per ", name).split()
    unit, words = _one_unit(words)
    while words and words[0] in _PER and len(words) > 1:
        below, words = _one_unit(words[1:])
        unit = f"{unit}/{below}"
    return unit, " ".join(words)


def _one_unit(words: list[str]) -> tuple[str, list[str]]:
    if not words or (words[0] in _NO_UNITS and words[1:] and words[1] != "per"):
        return "", words
    if words[0] in _DIMENSIONS and len(words) > 1:
        below, rest = _one_unit(words[1:])
        return below + _DIMENSIONS[words[0]], rest
    word, power, exponent = words[0].partition("^")
    unit = _spelling(word) + power + exponent
    if len(words) > 1 and (unit == "degree" or _spelling(words[1]) in _KNOWN_UNITS):
        return f"{unit}{words[1][:1] if unit == 'degree' else ' ' + _spelling(words[1])}", words[2:]
    return unit, words[1:]


def _spelling(word: str) -> str:
    if word in _SPELLINGS:
        return _SPELLINGS[word]
    singular = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    return _SPELLINGS.get(singular, singular)
