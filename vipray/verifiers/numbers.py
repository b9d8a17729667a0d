r"""Exact values of written numbers. Every comparison that this file answers is exact: no floats anywhere.

`exact_value` understands rational arithmetic in plain text and LaTeX: integers (base ten, whatever zeros they begin
with), decimals, thousands separators, scientific notation, `\frac`, mixed numbers, `+ - * / ^ !`, brackets. It gives
None for everything else, and refuses to work out what would not fit into memory.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_MAX_BITS = 30_000  # of a result: 9,000 digits are more than any answer holds, and cost microseconds
_MAX_FACTORIAL = 2_500
_MAX_DIGITS = 2_000  # of a literal
_MAX_DEPTH = 40  # of brackets
_MAX_TOKENS = 200  # bounds the recursion too

_TOKEN = re.compile(
    r"\s*(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?|\*\*|\\(?:frac|cdot|times|div|ast)(?![a-zA-Z])|[-+*/^!(){}])"
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d])(?!,\d)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}")
_TIMES = {"*", "\\cdot", "\\times", "\\ast"}
_DIVIDE = {"/", "\\div"}

SCANNED_NUMBER = re.compile(
    r"(?<![\w)^_])(?<!\d\.)(?<!\d,)(?:[-−]\s?)?[$€£¥]?\s?(?:[-−])?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|(?<![\d.])\.\d+)?(?<=\d)(?:[eE][+-]?\d+)?(?:\s?/\s?\d+(?![\d/]))?"
)
"""A number in running text, with its sign, its currency and its fraction; a minus after a word or a digit is none."""


class TooCostlyError(ArithmeticError):
    """The value is too large to be worked out."""


def join_thousands(text: str) -> str:
    """Take out thousands separators; commas that separate anything else stay.

    >>> join_thousands("1,234,567.5 and 2,16 and 12 500")
    '1234567.5 and 2,16 and 12500'
    """
    return _THOUSANDS.sub(lambda match: re.sub("[ ,]", "", match.group()), text)


def exact_value(text: str) -> Fraction | None:
    r"""Return the exact value of a written rational number, or None where it is anything else.

    Raises:
        TooCostlyError: it is one, but its value does not fit into memory.

    >>> exact_value("033"), exact_value(r"2\frac{1}{2}"), exact_value(r"1.4\times 10^{-2}")
    (Fraction(33, 1), Fraction(5, 2), Fraction(7, 500))
    >>> exact_value("2 3"), exact_value("x")
    (None, None)
    """
    try:
        tokens = split_tokens(_REPEATING.sub(_repeating, join_thousands(text)))
        return RationalReader(tokens).read() if tokens else None
    except (NotReadableError, ZeroDivisionError):
        return None


def _repeating(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction in brackets."""
    whole, fixed, period = match.groups()
    if len(match.group()) > _MAX_DIGITS:
        raise NotReadableError
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return f"({top}/{(10 ** len(period) - 1) * 10 ** len(fixed)})"


def terminates(value: Fraction) -> bool:
    """Whether a decimal with finitely many digits is exactly `value`."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


class NotReadableError(ValueError):
    """The text is no arithmetic of the kind that is read."""


def split_tokens(text: str, token: re.Pattern[str] = _TOKEN) -> list[str]:
    """Return the tokens of a text.

    Raises:
        NotReadableError: something in it is no token, or there are too many.
    """
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = token.match(text, position)
        if match is None or len(tokens) == _MAX_TOKENS:
            raise NotReadableError
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class RationalReader:
    """Reads a sum of products of powers by recursive descent.

    Raises:
        NotReadableError: the tokens are no such arithmetic.
        TooCostlyError: a value does not fit into memory.
        ZeroDivisionError: it divides by zero.
    """

    juxtaposed = frozenset({"(", "{"})  # what multiplies by standing behind a factor

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def read(self) -> Fraction:
        """Return the value of all tokens."""
        value = self._sum()
        if self._at != len(self._tokens):
            raise NotReadableError
        return value

    @property
    def next(self) -> str:
        """The token to come; empty at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self) -> str:
        """Return the token to come and step over it."""
        token = self.next
        self._at += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while self.next in ("+", "-") and self.next:
            sign = 1 if self.take() == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            if self.next in _TIMES:
                self.take()
                value = self.bounded(value * self._signed())
            elif self.next in _DIVIDE:
                self.take()
                value = value / self._signed()
            elif self.next in self.juxtaposed:
                value = self.bounded(value * self._power())
            else:
                return value

    def _signed(self) -> Fraction:
        if self.next in ("-", "+") and self.next:
            return -self._signed() if self.take() == "-" else self._signed()
        return self._power()

    def _power(self) -> Fraction:
        base = self.atom()
        while self.next == "!":
            self.take()
            base = _factorial(base)
        if self.next in ("^", "**"):
            self.take()
            return self.raised(base, self._signed())
        return base

    def atom(self) -> Fraction:
        """Return the value of a number, a fraction or a group."""
        token = self.take()
        if token in ("(", "{"):
            return self.group(token)
        if token == "\\frac":
            return self._fraction()
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise NotReadableError
        value = _literal(token)
        if self.next == "\\frac" and token.isdecimal():
            self.take()
            part = self._fraction()
            if not 0 < part < 1:
                raise NotReadableError  # 2\frac{3}{2}: a mixed number or a product?
            return value + part
        if self._is_plain_mixed(token):
            top, _, bottom = (self.take() for _ in range(3))
            part = Fraction(int(top), int(bottom))
            if not 0 < part < 1:
                raise NotReadableError
            return value + part
        return value

    def raised(self, base: Fraction, exponent: Fraction) -> Fraction:
        """Return a power."""
        return _power(base, exponent)

    def bounded(self, value: Fraction) -> Fraction:
        """Return a product, unless it does not fit into memory."""
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise TooCostlyError("a product with too many digits")
        return value

    def _is_plain_mixed(self, whole: str) -> bool:
        parts = self._tokens[self._at : self._at + 3]
        return (
            whole.isdecimal() and len(parts) == 3 and parts[1] == "/" and parts[0].isdecimal() and parts[2].isdecimal()
        )

    def group(self, opening: str) -> Fraction:
        """Return the value up to the bracket that closes `opening`, which is already taken."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TooCostlyError("brackets nested too deeply")
        value = self._sum()
        if self.take() != {"(": ")", "{": "}"}[opening]:
            raise NotReadableError
        self._depth -= 1
        return value

    def _fraction(self) -> Fraction:
        if self.take() != "{":
            raise NotReadableError
        top = self.group("{")
        if self.take() != "{":
            raise NotReadableError
        return top / self.group("{")


def _literal(token: str) -> Fraction:
    digits, _, exponent = token.lower().partition("e")
    if len(digits) > _MAX_DIGITS or len(exponent.lstrip("+-0")) > 4:
        raise TooCostlyError("a number with too many digits")
    return Fraction(digits if digits[-1] != "." else digits + "0") * Fraction(10) ** int(exponent or 0)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotReadableError
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and bits * abs(exponent) > _MAX_BITS:
        raise TooCostlyError("a power with too many digits")
    if base.denominator == 1 and abs(base) <= 1:
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        return base ** (int(exponent) % 2 + 2) if exponent else Fraction(1)
    return base ** int(exponent)


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise NotReadableError
    if value > _MAX_FACTORIAL:
        raise TooCostlyError("a factorial with too many digits")
    return Fraction(math.factorial(int(value)))
