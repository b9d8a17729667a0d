r"""What kind of answer a text is: number, list, set, pair or interval, matrix, equation, ratio, words.

A form is a small tree. Its leaves (`value`) are LaTeX expressions, with the unit or percent sign that stood behind
them taken off. The kinds are kept apart on purpose: `(1,2)` is a pair or an open interval and never the set
`\{1,2\}`, `[1,2]` is no `(1,2)`, `1001_2` is no 1001.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from vipray.verifiers.latex_text import compact, tidy
from vipray.verifiers.numbers import join_thousands
from vipray.verifiers.units import Measured, split_unit, without_words

Kind = Literal["value", "words", "list", "set", "bracket", "union", "matrix", "relation", "ratio", "based"]

MAX_CHARACTERS = 2_000  # of a text that is read as mathematics
_MAX_DEPTH = 30  # of its brackets

_FUNCTIONS = (
    "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|exp|max|min|gcd|lcm|det|mod|sqrt|pi|cis|floor|ceil"
)
_WORD = re.compile(rf"(?<![\\a-zA-Z])(?!(?:{_FUNCTIONS})(?![a-zA-Z]))[a-zA-Z]{{3,}}")
_SEPARATOR = re.compile(
    r"(?:\s*[,;]\s*)?(?:\s*\\text\s*\{\s*,?\s*(and|or)\s*\}\s*|(?<![a-zA-Z\\{])(and|or)(?![a-zA-Z}])\s*)|\s*[,;]\s*",
    re.IGNORECASE,
)
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx)(?![a-zA-Z])|[<>=]")
_OTHER_RELATION = re.compile(
    r"\\(?:equiv|sim|simeq|cong|subset|to|Rightarrow|implies|iff|parallel|perp|notin)(?![a-zA-Z])"
)
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_ROW_END = re.compile(r"\\\\(?:\[[^\]]*\])?")
_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_(?:\{(?:\\text\s*\{)?\s*(\w+)\s*\}{1,2}|(\d))")
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi"
    "|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega"
)
_QUANTITIES = (
    "area|volume|perimeter|circumference|length|width|height|radius|diameter|distance|speed|rate|time|total|sum|difference"
    "|product|quotient|mean|median|mode|average|range|slope|probability|value|result|answer|remainder|cost|price|profit"
    "|number|angle|ratio|age|minimum|maximum|max|min"
)
_NAME = re.compile(
    rf"(?:\\text\{{[^{{}}]*\}}|[a-zA-Z]|[A-Z]{{2,3}}|[A-Z]?(?:{_QUANTITIES})|[A-Z][a-z]{{2,}}|\\(?:{_GREEK}))"
    r"(?:_(?:\{[^{}]*\}|\w))?'*(?:\^\{?(?:\*|\\prime)\}?|(?<=[A-Zfgh])\^\{?-1\}?)?(?:\s*\([a-zA-Z0-9, ]*\))?"
    r"|\|?\\?(?:overline|angle|triangle)?\s*\{?[A-Z]{1,3}\}?\|?|m?\s*\\angle\s*\{?[A-Z]{1,3}\}?"
)
_LETTERS = re.compile(r"[a-zA-Z](?:\s*\+\s*[a-zA-Z])+|[a-z]{3,}")
_LEAD = re.compile(r"\\text\s*\{\s*(?:the )?(?:final )?answer(?: is)?\s*:?\s*\}\s*(?=\S)", re.IGNORECASE)
_TEXT_WITH_NUMBER = re.compile(r"\\text\s*\{([^{}]*\d[^{}]*)\}")
_CLOCK = re.compile(r"(?P<head>\d{1,2}:\d\d)\s*(?:\\text\{)?\s*(?P<half>[ap])\.?\s?m\.?\s*\}?", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """An answer by its kind.

    Attributes:
        kind: what it is.
        text: tidy LaTeX of a `value`; the words; the brackets of a `bracket` (`"(]"`); the operators of a
            `relation`, apart by spaces; the base of a `based` number; how a `list` is joined.
        items: the parts.
        unit: of a `value`, as written without its spaces; empty where there is none.
        percent: whether a percent sign stood behind a `value`.
    """

    kind: Kind
    text: str = ""
    items: tuple[Form, ...] = ()
    unit: str = ""
    percent: bool = False


def read_form(text: str) -> Form | None:
    r"""Return the form of an answer, or None for an empty one.

    >>> read_form(r"15\text{ cm}")
    Form(kind='value', text='15', items=(), unit='cm', percent=False)
    >>> read_form("[0, 1)").text, len(read_form("1331 and 1728").items)
    ('[)', 2)
    """
    if len(text) > MAX_CHARACTERS:
        return Form("words", text.strip())
    text = _LEAD.sub("", tidy(text))
    if not text:
        return None
    if max(_depths(text)) > _MAX_DEPTH:
        return Form("words", compact(text))
    return _read(text, outermost=True)


def is_name(text: str, *, loosely: bool = False) -> bool:
    r"""Whether the left side of an equation only names the answer: `x`, `f(x)`, `\text{Area}`, `AB`.

    Loosely, a sum of letters (`m+n`) and a run of them (`abc`) are names too. In a gold they are not: `x+y = 7` is a
    line.
    """
    text = text.strip()
    return bool(_NAME.fullmatch(text) or (loosely and _LETTERS.fullmatch(text)))


def has_words(text: str) -> bool:
    """Whether tidy text holds English rather than mathematics."""
    return bool(_WORD.search(re.sub(r"\\(?:begin|end)\{\w+\}", "", text)))


def _read(text: str, *, outermost: bool = False) -> Form:
    text = text.strip()
    worded = _TEXT_WITH_NUMBER.fullmatch(text)
    if worded:
        text = worded.group(1).strip()
    if outermost and not _CLOCK.fullmatch(text):
        text = _join_outer_thousands(text)
        measured = without_words(text)
        if measured.text != text:
            return _with_measure(_read(measured.text), measured)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix.group(2))
    if _OTHER_RELATION.search(text) or not text:
        return Form("words", compact(text))
    parts, joint = _split_list(text)
    if len(parts) > 1:
        return _list(parts, joint)
    return _single(text)


def _join_outer_thousands(text: str) -> str:
    """Take out thousands separators outside of brackets: inside, a comma separates."""
    depths = _depths(text)
    runs = re.compile(r"[^()\[\]{}]+")
    return runs.sub(lambda run: run.group() if depths[run.start()] else join_thousands(run.group()), text)


def _single(text: str) -> Form:
    if _plain_words(text):
        return Form("words", _words(text))
    sides = _split_at(text, _RELATION)
    if len(sides) > 1:
        return _relation(sides)
    for reader in (_bracket, _set, _union, _clock_or_ratio, _based, _plus_minus):
        form = reader(text)
        if form is not None:
            return form
    return _value(text)


def _plain_words(text: str) -> bool:
    """Whether a text is words, `(A)` or a Roman numeral rather than an expression."""
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if bare != text and re.fullmatch(r"[\sa-zA-Z()'.-]+", bare):
        return bool(re.fullmatch(r"\s*\\text\s*\{[^{}]*\}\s*", text)) or has_words(bare)
    if re.fullmatch(r"\(\s*[A-Z]\s*\)|no|No|NO", text):
        return True
    return bool(re.fullmatch(r"[a-zA-Z][a-zA-Z'. -]*", text)) and has_words(text)


def _words(text: str) -> str:
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    words = re.sub(r"[().\s]+", " ", text).strip()
    return words if len(words) == 1 else words.casefold()


def _depths(text: str) -> list[int]:
    r"""Return how many brackets are open at each character; an interval's `[0,1)` closes too."""
    depth = 0
    depths = []
    index = 0
    while index < len(text):
        character = text[index]
        if character == "\\" and index + 1 < len(text) and text[index + 1] in "{}":
            depth += 1 if text[index + 1] == "{" else -1
            inner = depth if text[index + 1] == "{" else depth + 1
            depths += [inner, inner]
            index += 2
            continue
        if character in "([{":
            depth += 1
            depths.append(depth)
        elif character in ")]}":
            depths.append(depth)
            depth -= 1
        else:
            depths.append(depth)
        index += 1
    return depths


def _split_at(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Split at matches outside of all brackets; the odd parts are the matches."""
    depths = _depths(text)
    parts: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        if depths[match.start()] == 0 and depths[match.end() - 1] in (0, 1):
            parts += [text[start : match.start()], match.group().strip()]
            start = match.end()
    return [*parts, text[start:]]


def _split_list(text: str) -> tuple[list[str], str]:
    r"""Return the parts of a list and how they are joined: `or`, else `and`."""
    pieces = _split_list_at(text)
    joints = " ".join(pieces[1::2]).lower()
    parts = [part.strip() for part in pieces[::2] if part.strip()]
    return parts, "or" if "or" in joints else "and"


def _split_list_at(text: str) -> list[str]:
    depths = _depths(text)
    pieces: list[str] = []
    start = 0
    for match in _SEPARATOR.finditer(text):
        outside = text[match.start()] == "\\" or depths[match.start()] == 0
        if outside and _depth_before(depths, match.start()) == 0 and match.group().strip():
            pieces += [text[start : match.start()], match.group()]
            start = match.end()
    return [*pieces, text[start:]]


def _depth_before(depths: list[int], index: int) -> int:
    """Return the depth outside of what begins at `index`."""
    return 0 if index == 0 else depths[index]


def _list(parts: list[str], joint: str) -> Form:
    items = [_read(part) for part in parts]
    if _same_name(items):
        items = [_right_side(item) for item in items]  # x = 1, x = 2 and x = 1, 2
    units = {item.unit for item in items if item.unit}
    if len(units) == 1 and items[-1].unit:
        items = [replace(item, unit=items[-1].unit) if item.kind == "value" else item for item in items]
    flat = [part for item in items for part in (item.items if item.kind == "list" else (item,))]
    return Form("list", joint, tuple(flat))


def _same_name(items: list[Form]) -> bool:
    """Whether a list gives values of one name: the first item is `name = …`, the others that or values."""
    assigned = [item for item in items if item.kind == "relation"]
    names = {item.items[0].text for item in assigned}
    only_values = all(item.text == "=" for item in assigned) and all(
        item.kind in ("relation", "value", "words") for item in items
    )
    return items[0].kind == "relation" and only_values and len(names) == 1 and is_name(next(iter(names)))


def _right_side(form: Form) -> Form:
    return form.items[-1] if form.kind == "relation" and form.text == "=" else form


def _relation(sides: list[str]) -> Form:
    operators = [operator.strip() for operator in sides[1::2]]
    parts = [side.strip() for side in sides[::2]]
    if operators[0] == "=" and not parts[0]:
        return _relation(sides[2:]) if len(operators) > 1 else _read(parts[1])
    if "\\approx" in operators:  # the exact part comes first
        first = operators.index("\\approx")
        operators, parts = operators[:first], parts[: first + 1]
        if not parts[-1]:
            return _read(sides[-1])
        if not operators:
            return _read(parts[0])
    if operators == ["\\in"]:
        return _read(parts[1]) if is_name(parts[0]) else Form("words", compact("".join(sides)))
    if "\\in" in operators or not all(parts):
        return Form("words", compact("".join(sides)))
    return Form("relation", " ".join(operators), tuple(_read(part) for part in parts))


def _bracket(text: str) -> Form | None:
    opening, closing = text[0], text[-1]
    if opening == "]" and closing == "[" and text.count("[") == 1:  # the French way to write open intervals
        text, opening, closing = f"({text[1:-1]})", "(", ")"
    if opening not in "([" or closing not in ")]" or not _one_pair(text):
        return None
    parts, joint = _split_list(text[1:-1])
    if len(parts) < 2 or joint == "or":
        return None
    return Form("bracket", opening + closing, tuple(_read(part) for part in parts))


def _set(text: str) -> Form | None:
    if re.fullmatch(r"\\emptyset\s*|\\\{\s*\\\}", text):
        return Form("set")
    if not (text.startswith("\\{") and text.endswith("\\}")) or not _one_pair(text):
        return None
    inside = text[2:-2]
    if _split_at(inside, re.compile(r"\||:"))[1:]:
        return Form("words", compact(text))  # a set by its property
    parts, _ = _split_list(inside)
    return Form("set", items=tuple(_read(part) for part in parts))


def _union(text: str) -> Form | None:
    parts = _split_at(text, re.compile(r"\\cup(?![a-zA-Z])"))[::2]
    return Form("union", items=tuple(_read(part.strip()) for part in parts)) if len(parts) > 1 else None


def _clock_or_ratio(text: str) -> Form | None:
    clock = _CLOCK.fullmatch(text)
    if clock:
        ratio = _clock_or_ratio(clock["head"])
        return replace(ratio, unit=clock["half"].lower() + "m") if ratio else None
    parts = _split_at(text, re.compile(":"))[::2]
    if len(parts) < 2 or not all(part.strip() for part in parts):
        return None
    return Form("ratio", items=tuple(_value(part.strip()) for part in parts))


def _based(text: str) -> Form | None:
    match = _BASED.fullmatch(text)
    if match is None or not match.group(1)[0].isdigit():
        return None
    return Form("based", match.group(2) or match.group(3), (Form("words", match.group(1).lstrip("0") or "0"),))


def _plus_minus(text: str) -> Form | None:
    if text.count("\\pm") != 1 or "\\mp" in text or "\\pm" not in _split_at(text, re.compile(r"\\pm(?![a-zA-Z])")):
        return None
    plus = text.replace("\\pm", "+").strip().removeprefix("+").strip()
    return Form("list", "and", (_value(plus), _value(text.replace("\\pm", "-"))))


def _matrix(inside: str) -> Form:
    rows = [row for row in _ROW_END.split(inside) if row.strip()]
    cells = [tuple(_read(cell.strip()) for cell in row.split("&")) for row in rows]
    return Form("matrix", items=tuple(Form("list", "row", row) for row in cells))


def _with_measure(form: Form, measured: Measured) -> Form:
    """Give a unit, or a percent sign, to every value of a form that has none."""
    if form.kind == "list":
        return replace(form, items=tuple(_with_measure(item, measured) for item in form.items))
    if form.kind == "relation":
        return replace(form, items=(*form.items[:-1], _with_measure(form.items[-1], measured)))
    if form.kind != "value" or form.unit:
        return form
    return replace(form, unit=measured.unit, percent=form.percent or measured.percent)


def _value(text: str) -> Form:
    text = text.strip().removeprefix("+").lstrip()
    if _only_wraps(text):
        return _value(text[1:-1])
    measured = split_unit(text)
    if has_words(re.sub(r"\\text\{[a-zA-Z ]{1,2}\}", "", measured.text)):
        return Form("words", compact(measured.text))
    return Form("value", measured.text, unit=measured.unit, percent=measured.percent)


def _only_wraps(text: str) -> bool:
    """Whether one pair of round brackets surrounds the whole text."""
    return len(text) > 2 and text[0] == "(" and text[-1] == ")" and _one_pair(text)


def _one_pair(text: str) -> bool:
    """Whether the bracket that opens a text is closed by its end and not before."""
    depths = _depths(text)
    width = 2 if text[0] == "\\" else 1
    return min(depths) >= 1 and not any(
        depth == 1 and character in ")]}" for depth, character in zip(depths[:-width], text[:-width], strict=True)
    )
