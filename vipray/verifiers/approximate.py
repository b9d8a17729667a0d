r"""Floating-point values of expressions with roots and \pi, to tell quickly that two of them differ.

Never used to say that two expressions are equal.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from vipray.verifiers.numbers import NotReadableError, RationalReader, TooCostlyError, split_tokens

_TOLERANCE = 1e-6  # far above what rounding adds up to in an expression of this size
_TOKEN = re.compile(r"\s*(?:\d+\.?\d*|\.\d+|\\(?:frac|cdot|times|div|ast|sqrt|pi)(?![a-zA-Z])|[-+*/^(){}\[\]])")
_MAX_CHARACTERS = 200


def surely_differ(first: str, second: str) -> bool:
    r"""Whether two tidy expressions are real numbers that lie far apart.

    >>> surely_differ(r"2\sqrt{3}", r"\frac{7}{2}"), surely_differ(r"2\sqrt{3}", r"\sqrt{12}"), surely_differ("x", "2")
    (True, False, False)
    """
    left, right = approximate(first), approximate(second)
    if left is None or right is None:
        return False
    return abs(left - right) > _TOLERANCE * max(1.0, abs(left), abs(right))


def approximate(text: str) -> float | None:
    r"""Return about the value of a tidy expression, or None where it is no real arithmetic of roots and \pi."""
    if len(text) > _MAX_CHARACTERS:
        return None
    try:
        tokens = split_tokens(text, _TOKEN)
        return float(_RealReader(tokens).read()) if tokens else None
    except (NotReadableError, TooCostlyError, ArithmeticError, ValueError):
        return None


class _RealReader(RationalReader):
    r"""Reads roots and \pi too; values are floats as soon as one of them takes part."""

    juxtaposed = frozenset({"(", "{", "\\sqrt", "\\pi", "\\frac"})

    def atom(self) -> Any:
        if self.next == "\\pi":
            self.take()
            return math.pi
        if self.next != "\\sqrt":
            return super().atom()
        self.take()
        degree: Any = Fraction(2)
        if self.next == "[":
            self.take()
            degree = super().atom()
            if self.take() != "]":
                raise NotReadableError
        if self.take() != "{":
            raise NotReadableError
        return self.raised(self.group("{"), 1 / degree)

    def bounded(self, value: Any) -> Any:
        return super().bounded(value) if isinstance(value, Fraction) else value

    def raised(self, base: Any, exponent: Any) -> Any:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
            return super().raised(base, exponent)
        value = float(base) ** float(exponent)
        if isinstance(value, complex):
            raise NotReadableError
        return value
