from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipray.verifiers import symbolic
from vipray.verifiers.approximate import approximate, surely_differ
from vipray.verifiers.numbers import SCANNED_NUMBER, TooCostlyError, exact_value, join_thousands, terminates

RATIONALS = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("033", 33),
        ("-0", 0),
        (".5", "1/2"),
        ("1,234.50", "2469/2"),
        ("12 500", 12500),
        ("1.4e-2", "7/500"),
        (r"6.02 \times 10^{23}", 602 * 10**21),
        (r"2\frac{1}{2}", "5/2"),
        ("-1 1/2", "-3/2"),
        ("-2^2", -4),
        ("(-2)^{2}", 4),
        ("2^3^2", 512),
        ("2^{-1}", "1/2"),
        ("5!/4", 30),
        ("(2)(3)", 6),
        (r"0.1\overline{6}", "1/6"),
        ("2 3", None),
        (r"2\frac{3}{2}", None),
        ("1/0", None),
        ("2^{1/2}", None),
        ("1.2.3", None),
        ("1e", None),
        ("x", None),
        ("", None),
        ("(1", None),
        ("-" * 500 + "1", None),
    ],
)
def test_exact_values(text, value):
    assert exact_value(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    "text", ["9^{9^{9}}", "(10^9)!", "1e99999", "9" * 3000, "2^{-99999}", "(" * 60 + "1" + ")" * 60]
)
def test_values_that_do_not_fit_are_refused(text):
    with pytest.raises(TooCostlyError):
        exact_value(text)


@given(a=RATIONALS, b=RATIONALS, c=RATIONALS.filter(bool))
def test_arithmetic_is_that_of_fractions(a, b, c):
    def shown(value):
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    assert exact_value(f"{shown(a)}+({shown(b)})\\cdot{shown(c)}") == a + b * c
    assert exact_value(f"({shown(a)}-({shown(b)}))/({shown(c)})") == (a - b) / c


@given(number=st.integers(0, 10**30))
def test_thousands_separators_do_not_change_an_integer(number):
    assert join_thousands(f"{number:,}") == str(number)
    assert exact_value(f"{number:,}") == number


@given(value=st.fractions(max_denominator=10_000))
def test_a_decimal_terminates_if_ten_to_some_power_makes_it_whole(value):
    assert terminates(value) == ((value * 10**20).denominator == 1)


def test_numbers_in_running_text():
    text = "It costs $29.00, or -3, as 2-5=-3; 5e35, x2, 1,234.5, 3/4 and so...7."
    found = [match.group().strip() for match in SCANNED_NUMBER.finditer(text)]
    assert found == ["$29.00", "-3", "2", "5", "-3", "5e35", "1,234.5", "3/4", "7"]


@pytest.mark.parametrize(
    "text",
    [r"2\sqrt{3}", r"\frac{\pi}{12}+\frac{\sqrt{3}}{2}", r"\sqrt[3]{36}", "5^{6/5}", r"-\pi^{2}", r"\sqrt{2}\sqrt{6}",
     r"\frac{2\sqrt{6}-3}{3}", r"(1+\sqrt{5})/2", r"3\pi(1-\sqrt{2})", r"2^{\sqrt{2}}", r"\sqrt{\sqrt{16}}"],
)  # fmt: skip
def test_quick_values_are_those_of_sympy(text):
    assert approximate(text) == pytest.approx(float(symbolic.value(text)), rel=1e-12)


def test_quick_values_only_tell_apart():
    assert surely_differ(r"2\sqrt{3}", "3.5")
    assert not surely_differ(r"2\sqrt{3}", "3.4641016")
    assert not surely_differ("x", "2")
    assert not surely_differ(r"\sqrt{-1}", "2")
