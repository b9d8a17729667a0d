from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vipray.data.golds import JsonNumber, exact_answers
from vipray.errors import ConfigError


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_text_is_kept_to_the_letter_or_is_no_answer_at_all(text):
    assert exact_answers(text, "f row 1") == ((text,) if text.strip() else ())


@settings(deadline=None)
@given(st.integers())
def test_an_integer_of_any_size_keeps_its_digits(value):
    assert exact_answers(value, "f row 1") == (str(value),)


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        (JsonNumber("27.0"), ("27.0",)),
        (JsonNumber("1e400"), ("1e400",)),
        (JsonNumber("NaN"), ()),
        ("NaN", ("NaN",)),
        (Decimal("0.10"), ("0.10",)),
        (Decimal("1E+5"), ("100000",)),
        (None, ()),
        (float("nan"), ()),
        ([], ()),
        (["a", "b", "a"], ("a", "b")),
        ({"target": ["x", "y"]}, ("x", "y")),
    ],
)
def test_values_become_strings(value, answers):
    assert exact_answers(value, "f row 1") == answers


@pytest.mark.parametrize("value", [27.0, 0.1, float("inf"), 2.0**60])
def test_binary_floats_are_refused_because_their_digits_may_be_lost(value):
    with pytest.raises(ConfigError, match=r"f row 1: the answer .* is stored as a binary float.*as strings"):
        exact_answers(value, "f row 1")


@pytest.mark.parametrize("value", [True, {"a": 1}, b"7", [True]])
def test_what_is_no_answer_is_refused(value):
    with pytest.raises(ConfigError, match="f row 1: the answer must be a string or a number"):
        exact_answers(value, "f row 1")


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ConfigError, match="f row 1: a text holds half of a surrogate pair"):
        exact_answers("\ud800", "f row 1")
