r"""Equality of two LaTeX expressions that are no plain rational numbers, on math-verify's parser and sympy.

Two expressions count as equal where their difference is zero: as numbers, or at every one of several fixed rational
points of their variables, with every mix of signs. The difference is worked out to as many digits as it takes to see
that it is none, with the size of what is subtracted taken into account: `e^{100}+1` is not `e^{100}`. That decides
roots, logarithms, polynomials and rational functions without `simplify`, which can run for hours. Where a square root
of a variable makes an answer right for positive values alone, it is refused.

What would not end, or fill the memory, is refused before it is parsed (`check_cost`). Sums, products, integrals and
limits are not worked out: such answers are right only as the same text.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
import re
from typing import Any

from vipray.verifiers.numbers import TooCostlyError, exact_value

_log = logging.getLogger(__name__)

_DIGITS = 40
_WORKING_DIGITS = 60
_SHOWN_DIGITS = 20  # of a difference that is not zero
_DIGITS_PER_BIT = 0.9  # three times log10(2): a difference can be smaller than 1 by as much as its parts are larger
_MAX_WORKING_DIGITS = 3_000
_MAX_CHARACTERS = 400
_MAX_DEPTH = 10
_MAX_BARS = 8
_MAX_TOWER = 2  # powers above each other
_MAX_EXPONENT = 10_000
_MAX_LITERAL_DIGITS = 60
_SYMBOL_BITS = 4.0  # of a variable at the points where it is tried
_MAX_SIZE_BITS = 100_000.0  # of a value: sympy works out so many in milliseconds
_POINTS = ((7, 3), (-5, 7), (13, 11), (-17, 4), (1, 9))
_FAR_POINTS = ((10007, 3), (-20011, 7))  # where no variable stands in an exponent and no exponent is large
_MAX_FAR_BITS = 300.0
_MAX_SIGN_MIXES = 8
_ENOUGH_POINTS = 3

_READABLE = re.compile(r"[A-Za-z0-9\\{}()\[\]|^_+\-*/!., ]*")
_NEVER = re.compile(
    r"\\(?:sum|prod|int|oint|iint|lim|dots|ldots|cdots|bigcup|bigcap|begin|text|overline|circ|prime|bar|hat|vec|tilde|dot)"
    r"(?![a-zA-Z])"
)
_EXPONENT = re.compile(r"\^\s*(?:\{\s*)?[-+]?\s*(\d+)(?!\s*\.?\d)")
_POWER = re.compile(r"\^|\*\*")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)")
_FACTORIAL = re.compile(r"(\d+|\))\s*!")
_LOG_BASE = re.compile(r"\\log_\{?(\w+)\}?\s+(\w+)")
_SPECIAL = re.compile(r"\\(?:Gamma|zeta|gcd|lcm|mod|pmod|bmod)")
_IMPROPER = re.compile(r"(?<![\^_\d.])\d+\s*\\frac\{(\d+)\}\{(\d+)\}")
_ADJACENT_NUMBERS = re.compile(r"\d\s+\d|\d_\{?\d")


def check_cost(text: str) -> None:
    """Refuse what would not end.

    Raises:
        TooCostlyError: powers in exponents, large exponents, factorials of something large, or a text that is too
            long or too deeply nested.
    """
    if len(text) > _MAX_CHARACTERS:
        raise TooCostlyError(f"an expression of more than {_MAX_CHARACTERS} characters")
    if _depth(text) > _MAX_DEPTH:
        raise TooCostlyError(f"brackets nested more than {_MAX_DEPTH} deep")
    if text.count("|") > _MAX_BARS:
        raise TooCostlyError(f"more than {_MAX_BARS} bars")
    if any(int(digits[:9]) > _MAX_EXPONENT for digits in _EXPONENT.findall(text)):
        raise TooCostlyError(f"an exponent over {_MAX_EXPONENT}")
    if any(len(digits) > _MAX_LITERAL_DIGITS for digits in re.findall(r"\d+", text)):
        raise TooCostlyError(f"a number of more than {_MAX_LITERAL_DIGITS} digits")
    if _tower_height(text) > _MAX_TOWER:
        raise TooCostlyError("a power tower")
    for match in _FACTORIAL.finditer(text):
        inside = match.group(1)
        if re.search(r"\d{4}|\^", text) if inside == ")" else int(inside[:9]) > _MAX_EXPONENT:
            raise TooCostlyError("a factorial of something large")
    if _SPECIAL.search(text) and re.search(r"\d{4}|\^", text):
        raise TooCostlyError("a special function of something large")
    if "!!" in text.replace(" ", ""):
        raise TooCostlyError("a factorial of a factorial")


def warm_up() -> None:
    """Import what takes a second to import, so that the first answer does not wait for it."""
    _parsed(r"\sqrt{2}")


def equal(gold: str, answer: str) -> bool:
    r"""Whether two tidy LaTeX expressions have the same value.

    Raises:
        TooCostlyError: deciding it might not end.

    >>> equal(r"2\sqrt{3}", r"\sqrt{12}"), equal("x^{2}+1", "1+x^{2}"), equal("x", "y")
    (True, True, False)
    """
    first, second = _parsed(gold), _parsed(answer)
    if first is None or second is None:
        return False
    points = _points(first, second)
    agreed = 0
    for point in points:
        same = _same_number(_put(first, point), _put(second, point))
        if same is False:
            return False
        agreed += bool(same)
    return agreed >= min(_ENOUGH_POINTS, len(points))


def sign_of_ratio(gold: str, answer: str) -> int | None:
    """Return the sign of the real constant c with answer = c · gold, or None where there is no such constant.

    Raises:
        TooCostlyError: deciding it might not end.
    """
    first, second = _parsed(gold), _parsed(answer)
    if first is None or second is None:
        return None
    import sympy

    ratio: Any = None
    agreed = 0
    points = _points(first, second)
    for point in points:
        left, right = _put(first, point), _put(second, point)
        if _same_number(left, sympy.S.Zero) is not False or _same_number(right, sympy.S.Zero) is not False:
            continue
        if ratio is None:
            ratio = right / left
        elif not _same_number(ratio * left, right):
            return None
        agreed += 1
    if ratio is None or agreed < min(_ENOUGH_POINTS, len(points)):
        return None
    found = ratio.evalf(_WORKING_DIGITS)
    if abs(sympy.im(found)) > sympy.Float(10) ** -_DIGITS:
        return None
    return 1 if sympy.re(found) > 0 else -1


def value(text: str) -> Any:
    """Return a real or complex number to `_WORKING_DIGITS` digits, or None where the text is no number.

    Raises:
        TooCostlyError: working it out might not end.
    """
    expression = _parsed(text)
    if expression is None or expression.free_symbols:
        return None
    return _at(expression, {})


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _tower_height(text: str) -> int:
    """Return how many powers stand above each other, with braces and brackets followed."""
    highest = position = 0
    while (match := _POWER.search(text, position)) and highest <= _MAX_TOWER:
        exponent = _exponent_after(text, match.end())
        if re.search(r"\d{3,}|!", exponent) and _POWER.search(exponent):
            return _MAX_TOWER + 1
        highest = max(highest, 1 + _tower_height(exponent))
        position = match.end() + len(exponent)
    return highest


def _exponent_after(text: str, start: int) -> str:
    """Return the exponent that begins at `start`, with the powers that follow it."""
    rest = text[start:].lstrip()
    if not rest or rest[0] not in "({":
        match = re.match(r"[-+]?(?:\w+|\\\w+)(?:\s*\^\s*\S+)?", rest)
        return match.group() if match else ""
    depth = 0
    for index, character in enumerate(rest):
        depth += (character in "({") - (character in ")}")
        if depth == 0:
            after = rest[index + 1 :]
            return rest[1:index] + (after if after.lstrip().startswith("^") else "")
    return rest[1:]


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """Return the sympy expression of a text, or None where it cannot be read as one whole expression."""
    import sympy

    rational = exact_value(text)
    if rational is not None:
        return sympy.Rational(rational.numerator, rational.denominator)
    check_cost(text)
    text = _LOG_BASE.sub(r"\\log_{\1}{\2}", text)
    if not _READABLE.fullmatch(text) or _NEVER.search(text) or _ADJACENT_NUMBERS.search(text) or not text.strip():
        return None
    if any(int(top) >= int(bottom) for top, bottom in _IMPROPER.findall(text)):
        return None  # 1\frac{3}{2}: a mixed number or a product?
    try:
        return _read(text)
    except (TooCostlyError, MemoryError):
        raise
    except RecursionError:
        raise TooCostlyError("an expression that is too deeply nested") from None
    except Exception:  # noqa: BLE001 - the parser raises every kind of error on what it cannot read: no expression
        _log.debug("no expression: %s", text, exc_info=True)
        return None


def _read(text: str) -> Any:
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    text = _DECIMAL.sub(_decimal, text).replace("**", "^")
    parsed = latex2sympy(
        text, is_real=None, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False)
    )
    if not isinstance(parsed, sympy.Expr):
        return None
    _check_size(parsed)
    return parsed.xreplace({symbol: sympy.I for symbol in parsed.free_symbols if str(symbol) == "i"})


def _check_size(expression: Any) -> float:
    """Return a bound of |log2 |value|| where an expression is tried; refuse what is absurdly large or small."""
    sizes = [_check_size(part) for part in expression.args]
    kind = type(expression).__name__
    if expression.is_Rational:
        size = abs(math.log2(abs(expression.p)) - math.log2(expression.q)) if expression.p else 0.0
    elif expression.is_Pow or kind == "exp":
        size = _power_size(expression, sizes)
    elif kind == "binomial":
        size = 2.0 ** min(max(sizes), 60.0)
    elif kind in ("factorial", "gamma", "factorial2"):
        size = _factorial_size(expression, sizes)
    elif expression.is_Mul:
        size = sum(sizes)
    else:
        size = max(sizes, default=_SYMBOL_BITS) + math.log2(len(sizes) or 1)
    if size > _MAX_SIZE_BITS:
        raise TooCostlyError("a value with too many digits")
    return size


def _factorial_size(expression: Any, sizes: list[float]) -> float:
    top = expression.args[0]
    if top.is_Integer and 0 < top < _MAX_EXPONENT:
        return math.lgamma(int(top) + 1) / math.log(2)
    return 2.0 ** min(2 * max(sizes), 60.0)


def _power_size(expression: Any, sizes: list[float]) -> float:
    base, exponent = sizes if len(sizes) == 2 else (1.5, sizes[0])
    power = expression.args[-1]
    factor = abs(float(power)) if power.is_Rational else 2.0 ** min(exponent, 60.0)
    return max(base, 0.1) * factor


def _decimal(match: re.Match[str]) -> str:
    whole, part = match.groups()
    return rf"\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"


def _points(first: Any, second: Any) -> list[dict[Any, Any]]:
    """Return where two expressions are compared: near and far, with several variables at every mix of signs."""
    import sympy

    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if not symbols:
        return [{}]
    values = _POINTS if _grows_fast(first) or _grows_fast(second) else (*_POINTS, *_FAR_POINTS)
    if len(symbols) == 1:
        return [{symbols[0]: sympy.Rational(*value)} for value in values]
    draw = random.Random(0)
    mixes = list(itertools.islice(itertools.product((1, -1), repeat=min(len(symbols), 3)), _MAX_SIGN_MIXES))
    return [
        {
            symbol: sympy.Rational(
                draw.randint(1, 29) * (signs[place] if place < len(signs) else draw.choice((1, -1))),
                draw.choice((7, 11, 13)) + 30 * place,
            )
            * (1 if values is _POINTS else draw.choice((1, 1, 1009)))
            for place, symbol in enumerate(symbols)
        }
        for signs in mixes * 2
    ]


def _grows_fast(expression: Any) -> bool:
    """Whether a variable stands in an exponent or under a factorial, or in a large power."""
    import sympy

    fast = expression.atoms(sympy.Pow, sympy.exp, sympy.factorial, sympy.binomial, sympy.gamma)
    if expression.free_symbols and _check_size(expression) > _MAX_FAR_BITS:
        return True
    return any(part.args[-1].free_symbols or not part.is_Pow for part in fast if part.free_symbols)


def _same_number(left: Any, right: Any) -> bool | None:
    """Whether two numbers are equal, or None where one of them has no value (a pole, an undefined function).

    Raises:
        TooCostlyError: that takes too many digits.
    """
    if left == right:
        return True if _at(left, {}) is not None else None
    if left.is_Rational and right.is_Rational:
        return False
    digits = _WORKING_DIGITS + int(_DIGITS_PER_BIT * max(_check_size(left), _check_size(right)))
    most_digits = min(digits, _MAX_WORKING_DIGITS)
    difference = _value(left - right, _SHOWN_DIGITS, most_digits)
    if difference is None or not _is_zero(difference, most_digits):
        return None if difference is None else False
    if most_digits < digits:
        raise TooCostlyError("a difference that takes too many digits")
    return True


def _at(expression: Any, point: dict[Any, Any]) -> Any:
    """Return the value at a point, or None where there is none (a pole, an undefined function)."""
    return _value(_put(expression, point), _WORKING_DIGITS, 2 * _WORKING_DIGITS)


def _put(expression: Any, point: dict[Any, Any]) -> Any:
    """Return an expression with the values of a point in it; not a number where that cannot be done."""
    import sympy

    try:
        return expression.subs(point) if point else expression
    except RecursionError:
        raise TooCostlyError("an expression that is too deeply nested") from None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises every kind of error on what has no value
        _log.debug("no value", exc_info=True)
        return sympy.nan


def _value(number: Any, num_digits: int, most_digits: int) -> Any:
    """Return a number to `num_digits` digits, worked out with at most `most_digits`, or None where it has no value."""
    try:
        found = number.evalf(num_digits, maxn=most_digits)
        is_plain = all(part.is_Float or part.is_Rational for part in found.as_real_imag())
    except RecursionError:
        raise TooCostlyError("an expression that is too deeply nested") from None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises every kind of error on what has no value
        _log.debug("no value", exc_info=True)
        return None
    return found if is_plain else None


def _is_zero(number: Any, num_digits: int) -> bool:
    """Whether a difference is zero; one that sympy found no correct digit of is what cancellation leaves."""
    import sympy

    least = sympy.Float(10) ** -(num_digits - _SHOWN_DIGITS)
    return all(part == 0 or getattr(part, "_prec", 99) <= 2 or abs(part) < least for part in number.as_real_imag())
