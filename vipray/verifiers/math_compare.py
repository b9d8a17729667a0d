r"""Whether an answer's form equals the gold's.

Exact everywhere, with one exception. In this order, cheapest first:

1. the same tidy text;
2. rational numbers by their exact values; a terminating gold (`1`, `0.014`, `3/4`) is equal to nothing else;
3. real numbers that lie far apart are different;
4. the exception: a decimal with at least `ROUNDED_PLACES` places and six significant digits answers a gold that no
   decimal can give exactly (`1/3`, `\sqrt{2}`, `\pi`), if it is that gold correctly rounded to the places written;
5. everything else as `symbolic.equal`.

Of the forms around the values:

- lists and sets are equal whatever the order, part by part, none missing and none too many; parts of the same value
  count once in a set and where `or` joins them. Pairs, points and intervals keep their order and their brackets.
- A name in front (`x = 5`, `f(x) = …`, `m+n = 5`) goes where the other side has none, but never two different names.
- Equations are equal where one side minus the other is the same up to a constant factor; inequalities also in their
  direction. An interval equals the inequality of one name that says the same.
- `28%` is answered by 28 and by its exact value 0.28; a bare gold by a percentage of its value, and by the bare
  number with a percent sign where the gold is over 1 (below, 0.5 and 0.5% are easily confused).
- A unit is dropped where the other side has none; two different units are different answers.
- Refused although some would pay them: a ratio that is not written in the gold's numbers (except as the same
  fraction), a pair for a list, degrees for radians, a number in another base, renamed variables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from vipray.verifiers import symbolic
from vipray.verifiers.approximate import surely_differ
from vipray.verifiers.latex_text import compact
from vipray.verifiers.math_forms import Form, is_name
from vipray.verifiers.numbers import exact_value, terminates
from vipray.verifiers.units import same_unit

ROUNDED_PLACES = 6
_LITERAL_DECIMAL = re.compile(r"-?\s*\d*\.(\d+)")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
_NUM_SIGNIFICANT = 6  # digits of a rounded decimal
_COMMANDS = re.compile(r"\\[a-zA-Z]+")
_CLOCK_TIME = re.compile(r"[0-2]?\d:[0-5]\d")
_STARTS_OPEN = {"<": "(", "\\le": "["}
_ENDS_OPEN = {"<": ")", "\\le": "]"}
_INFINITY = "\\infty"


def equal_forms(gold: Form, answer: Form) -> bool:
    """Whether `answer` is as right as `gold`.

    Raises:
        TooCostlyError: deciding it might not end.
    """
    gold, answer = _without_names(gold, answer)
    gold, answer = _alternatives(gold), _alternatives(answer)
    if gold.kind == answer.kind or {gold.kind, answer.kind} == {"list", "set"}:
        return _SAME_KIND[gold.kind](gold, answer)
    if {gold.kind, answer.kind} == {"ratio", "value"}:
        return _ratio_and_value(gold, answer)
    if {gold.kind, answer.kind} <= {"relation", "list", "bracket", "union"}:
        return _as_intervals(gold, answer)
    if {gold.kind, answer.kind} == {"words", "value"}:
        return compact(gold.text) == compact(answer.text)
    return False


def _without_names(gold: Form, answer: Form) -> tuple[Form, Form]:
    """Take a name off one side where the other has none; `2+3 = 5` is 5 on both sides.

    A sum or a run of letters is a name in an answer only.
    """
    gold, answer = _last_of_chain(gold), _last_of_chain(answer, loosely=True)
    if _assigns(gold) and answer.kind != "relation":
        return _right(gold), answer
    if _assigns(answer, loosely=True) and gold.kind != "relation":
        return gold, _right(answer)
    return gold, answer


def _assigns(form: Form, *, loosely: bool = False) -> bool:
    if form.kind != "relation" or form.text != "=":
        return False
    if form.items[0].kind == "bracket" and form.items[-1].kind == "bracket":
        return all(is_name(item.text) for item in form.items[0].items)  # (x, y) = (1, 2)
    name = _source(form.items[0])
    is_sum = "+" in name
    return is_name(name, loosely=loosely) and not (is_sum and _exact(form.items[-1]) == 0)  # x+y = 0 is a line


def _right(form: Form) -> Form:
    return form.items[-1]


def _source(form: Form) -> str:
    return rf"\text{{{form.text}}}" if form.kind == "words" and " " in form.text else form.text


def _last_of_chain(form: Form, *, loosely: bool = False) -> Form:
    r"""Reduce `2+3 = 5` to 5 and `x = 2+3 = 5` to `x = 5`, where all that is said to be equal is; else leave it."""
    if form.kind != "relation" or set(form.text.split()) != {"="}:
        return form
    if len(form.items) == 2 and is_name(form.items[1].text) and not is_name(_source(form.items[0])):
        form = replace(form, items=form.items[::-1])  # 5 = x
    first, *rest = form.items
    if is_name(_source(first), loosely=loosely):
        return Form("relation", "=", (first, rest[-1])) if len(rest) > 1 and _all_equal(rest) else form
    is_arithmetic = all(item.kind == "value" and not _has_letters(item.text) for item in form.items)
    return rest[-1] if is_arithmetic and _all_equal([first, *rest]) else form


def _all_equal(items: Sequence[Form]) -> bool:
    last = items[-1]
    return all(item.kind == last.kind and _SAME_KIND[last.kind](last, item) for item in items[:-1])


def _has_letters(text: str) -> bool:
    return bool(re.search("[a-zA-Z]", _COMMANDS.sub("", text)))


def _alternatives(form: Form) -> Form:
    """Return a list whose parts are joined by `or` and have one value as that value: `0.5 or 1/2`."""
    if form.kind != "list" or form.text != "or" or len(form.items) < 2:
        return form
    first = form.items[0]
    if all(first.kind == item.kind == "value" and _equal_values(first, item) for item in form.items[1:]):
        return first
    return form


def _equal_values(gold: Form, answer: Form) -> bool:
    if gold.percent != answer.percent and (gold.unit or answer.unit):
        return False
    if not same_unit(gold.unit, answer.unit):
        return False
    if gold.percent or answer.percent:
        return _equal_percentages(gold, answer)
    return _equal_expressions(gold.text, answer.text)


def _equal_percentages(gold: Form, answer: Form) -> bool:
    if gold.percent and answer.percent:
        return _equal_expressions(gold.text, answer.text)
    if gold.percent:
        return _equal_expressions(gold.text, answer.text) or _equal_expressions(_hundredth(gold), answer.text)
    value = _exact(gold)
    if value is not None and abs(value) > 1 and _equal_expressions(gold.text, answer.text):
        return True
    return _equal_expressions(gold.text, _hundredth(answer))


def _hundredth(form: Form) -> str:
    return rf"\frac{{{form.text}}}{{100}}"


def _exact(form: Form) -> Fraction | None:
    return exact_value(form.text) if form.kind == "value" else None


def _equal_expressions(gold: str, answer: str) -> bool:
    if compact(gold) == compact(answer):
        return True
    gold_value, answer_value = exact_value(gold), exact_value(answer)
    if gold_value is not None and answer_value is not None:
        return gold_value == answer_value or (
            not terminates(gold_value) and _is_rounding(answer, answer_value, gold_value)
        )
    if surely_differ(gold, answer):
        return False
    if gold_value is None and answer_value is not None and _LITERAL_DECIMAL.fullmatch(answer.strip()):
        return _rounds_irrational(gold, answer, answer_value)
    return symbolic.equal(gold, answer)


def _is_rounding(answer: str, answer_value: Fraction, gold_value: Fraction) -> bool:
    match = _LITERAL_DECIMAL.fullmatch(answer.strip())
    if match is None or len(match.group(1)) < ROUNDED_PLACES:
        return False
    if len(match.group().lstrip("-0. ").replace(".", "")) < _NUM_SIGNIFICANT:
        return False
    return abs(answer_value - gold_value) <= Fraction(1, 2 * 10 ** len(match.group(1)))


def _rounds_irrational(gold: str, answer: str, answer_value: Fraction) -> bool:
    number = symbolic.value(gold)
    if number is None or not number.is_real:
        return False
    if symbolic.equal(gold, answer):  # the gold was rational after all: 2\sqrt{4}
        return True
    digits = Fraction(str(number)) if "e" not in str(number) else Fraction(float(number))
    near = round(digits, 30)
    if near.denominator <= 10**12 and terminates(near):
        return False
    return _is_rounding(answer, answer_value, digits)


def _equal_lists(gold: Form, answer: Form) -> bool:
    as_sets = "set" in (gold.kind, answer.kind)
    first, second = list(gold.items), list(answer.items)
    if as_sets or "or" in (gold.text, answer.text):
        first, second = _distinct(first), _distinct(second)
    relations = [sum(item.kind == "relation" for item in items) for items in (first, second)]
    if relations[0] != relations[1]:
        return False  # `x = 1, y = 2` says more than `1, 2`
    if relations[0] and gold.text != answer.text:
        return False  # `x < 1 or x > 3` is not `x < 1 and x > 3`
    return _match(first, second)


def _distinct(items: list[Form]) -> list[Form]:
    kept: list[Form] = []
    for item in items:
        if not any(equal_forms(other, item) for other in kept):
            kept.append(item)
    return kept


def _match(gold: Sequence[Form], answer: Sequence[Form]) -> bool:
    """Whether two multisets are equal, part by part."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for item in gold:
        found = next((index for index, other in enumerate(left) if equal_forms(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _equal_brackets(gold: Form, answer: Form) -> bool:
    return gold.text == answer.text and _in_order(gold, answer)


def _in_order(gold: Form, answer: Form) -> bool:
    return len(gold.items) == len(answer.items) and all(
        equal_forms(first, second) for first, second in zip(gold.items, answer.items, strict=True)
    )


def _equal_rows(gold: Form, answer: Form) -> bool:
    return len(gold.items) == len(answer.items) and all(
        _in_order(first, second) for first, second in zip(gold.items, answer.items, strict=True)
    )


def _equal_relations(gold: Form, answer: Form) -> bool:
    if gold.text == answer.text and _in_order(gold, answer):
        return True
    backwards = " ".join(_FLIPPED[operator] for operator in reversed(answer.text.split()))
    if gold.text == backwards and _in_order(gold, replace(answer, items=answer.items[::-1])):
        return True
    if len(gold.items) != 2 or len(answer.items) != 2:
        return False
    if _assigns(gold) and _assigns(answer) and max(len(_source(form.items[0])) for form in (gold, answer)) > 1:
        return False  # the same name was compared above, and a different one is a different answer
    if any(item.kind != "value" for item in (*gold.items, *answer.items)):
        return False
    factor = symbolic.sign_of_ratio(_difference(gold), _difference(answer))
    if factor is None:
        return False
    return gold.text == (answer.text if factor > 0 else _FLIPPED[answer.text])


def _difference(form: Form) -> str:
    left, right = form.items
    return f"({left.text})-({right.text})"


def _equal_ratios(gold: Form, answer: Form) -> bool:
    if gold.unit and answer.unit != gold.unit:
        return False
    if any(
        first.text != second.text and (first.text[:1] == "0" or second.text[:1] == "0")
        for first, second in zip(gold.items[1:], answer.items[1:], strict=False)
    ):
        return False  # 10:05 is a time, and not 10:5
    return _in_order(gold, answer)


def _ratio_and_value(gold: Form, answer: Form) -> bool:
    ratio, value = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    parts = [_exact(item) for item in ratio.items]
    number = _exact(value)
    if len(parts) != 2 or None in parts or number is None or not parts[1] or ratio.unit:
        return False
    if _CLOCK_TIME.fullmatch(":".join(item.text for item in ratio.items)):
        return False
    return bool(re.search(r"\\frac|/", value.text)) and Fraction(parts[0] or 0) / parts[1] == number


def _as_intervals(gold: Form, answer: Form) -> bool:
    """Compare an interval, or a union of some, with inequalities of one name."""
    first, second = _intervals(gold), _intervals(answer)
    return first is not None and second is not None and _match(first, second)


def _intervals(form: Form) -> list[Form] | None:
    if form.kind == "bracket":
        return [form] if len(form.items) == 2 else None
    if form.kind == "relation":
        interval = _interval(form)
        return [interval] if interval else None
    if form.kind == "list" and form.text == "and":
        both = _both_bounds(form)
        return [both] if both else None
    if form.kind == "union" or (form.kind == "list" and form.text == "or"):
        parts = [_intervals(item) for item in form.items]
        names = {_name_of(item) for item in form.items if item.kind == "relation"}
        if None in parts or len(names) > 1 or (names and form.kind == "union"):
            return None
        return [interval for part in parts if part for interval in part]
    return None


def _both_bounds(form: Form) -> Form | None:
    """Return `x > -2 and x < 5` as the interval that it is, where both bounds are rational numbers."""
    parts = [_interval(item) for item in form.items if item.kind == "relation" and len(item.items) == 2]
    names = {_name_of(item) for item in form.items if item.kind == "relation"}
    if len(form.items) != 2 or len(parts) != 2 or None in parts or len(names) != 1:
        return None
    (lower, end), (start, upper) = sorted(((part.text, part.items) for part in parts if part), key=_is_upper)
    bounds = _exact(end[0]), _exact(upper[1])
    if None in bounds or (bounds[0] or 0) >= (bounds[1] or 0):
        return None
    return Form("bracket", lower[0] + start[1], (end[0], upper[1]))


def _is_upper(interval: tuple[str, tuple[Form, ...]]) -> bool:
    return interval[1][0].text == "-" + _INFINITY


def _interval(form: Form) -> Form | None:
    operators = form.text.split()
    items = form.items
    if operators[0] in (">", "\\ge"):
        operators = [_FLIPPED[operator] for operator in reversed(operators)]
        items = items[::-1]
    if not set(operators) <= {"<", "\\le"} or len(items) > 3 or _name_of(form) is None:
        return None
    if len(items) == 3:
        return Form("bracket", _STARTS_OPEN[operators[0]] + _ENDS_OPEN[operators[1]], (items[0], items[2]))
    infinite = Form("value", _INFINITY), Form("value", "-" + _INFINITY)
    if is_name(items[0].text):
        return Form("bracket", "(" + _ENDS_OPEN[operators[0]], (infinite[1], items[1]))
    return Form("bracket", _STARTS_OPEN[operators[0]] + ")", (items[0], infinite[0]))


def _name_of(form: Form) -> str | None:
    """Return the one bare name that an inequality bounds, or None."""
    sides = [form.items[1]] if len(form.items) == 3 else list(form.items)
    names = [item.text for item in sides if re.fullmatch(r"\\?[a-zA-Z]+(?:_\w)?", item.text) and item.kind == "value"]
    names = [name for name in names if name != _INFINITY and name != "\\pi" and (name[0] == "\\" or len(name) == 1)]
    return names[0] if len(names) == 1 else None


def _equal_words(gold: Form, answer: Form) -> bool:
    return gold.text == answer.text


def _equal_based(gold: Form, answer: Form) -> bool:
    return gold.text == answer.text and gold.items == answer.items


_SAME_KIND = {
    "value": _equal_values,
    "words": _equal_words,
    "list": _equal_lists,
    "set": _equal_lists,
    "bracket": _equal_brackets,
    "union": lambda gold, answer: _match(gold.items, answer.items),
    "matrix": _equal_rows,
    "relation": _equal_relations,
    "ratio": _equal_ratios,
    "based": _equal_based,
}
