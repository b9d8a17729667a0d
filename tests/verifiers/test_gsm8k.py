from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers.support import prompt_of, score
from vipray.records import Outcome
from vipray.verifiers.gsm8k import Gsm8kVerifier

VERIFIER = Gsm8kVerifier()
SOLUTION = "7*6=<<7*6=42>>42 pens\n50-42=<<50-42=8>>8\n#### 8"


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("7*6=42\n#### 42", "42"),
        ("#### 42\n" + "and this is consistent with the reasoning above. " * 20, "42"),
        ("7*6=42\n#### 42\n\nQuestion: 2*2?\nAnswer: 2*2=4\n#### 4", "42"),
        ("#### Step 1: multiply\n7*6=42\n#### 42", "42"),
        ("#### 1. Multiply\n7*6=42\n#### 2. Answer\nThe answer is 42.", "42"),
        ("#### $1,250.00", "1250"),
        (r"\boxed{70,000}", "70000"),
        (r"\boxed{\$1{,}250}", "1250"),
        (r"\boxed{\frac{84}{2}}", "42"),
        ("It costs $29.00.", "29"),
        ("She has 3 pens, then 8.", SOLUTION),
        ("The answer is 72, in total, so that is what she earns.", "72"),
        ("The answer is 6*7 = 42 pens.", "42"),
        ("The temperature is now -3.", "2-5=<<2-5=-3>>-3\n#### -3"),
        ("Final answer: 42 pens", "42"),
        ("7*6=42\nA: 42", "7*6=42\nA: 42"),
        ("The answer is 5 million.", "5,000,000"),
        ("It is 1.2 thousand.", "1200"),
        ("The answer is 50%.", "50"),
        ("<think>It is 41.</think>It is 42.", "42"),
        ("#### 42.\nThat took 3 steps.", "42"),
        ("#### 5 million", "5000000"),
        ("#### 2 1/2", "2.5"),
        (r"#### 2\frac{1}{2}", "2.5"),
        ("#### 1 000", "1000"),
        ("#### 20% of 50 = 10", "10"),
        (r"#### 18\times 2=36", "36"),
        ("#### 42 miles/hour", "42"),
        ("#### **42**", "42"),
        ("#### 42 more apples", "42"),
        ("The answer is 72 (67 + 5).", "72"),
        ("The answer is 72 because 67 + 5 is that.", "72"),
        ("So 50% of 24 is 12.", "12"),
        ("She waits 2 1/2 hours.", "2.5"),
        ("<<9*2=18>>18", "18"),
    ],
)
def test_right_answers_are_paid_however_they_are_written(completion, gold):
    assert score(VERIFIER, gold, completion).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        (r"\boxed{42}", SOLUTION),  # a number on the way, not the last
        ("The temperature is now 3.", "#### -3"),
        ("It costs $29.50.", "29"),
        ("It costs 2,900.", "29"),
        ("It is 1.8 or 18", "1.8"),
        ("The answer is 41 or 42.", "42"),
        ("The answer is 42 or 41.", "42"),
        (r"\boxed{42} or \boxed{41}", "42"),
        ("#### 41\n#### 42", "42"),
        ("#### 42-43", "42"),
        ("<think>It is 42.", "42"),
        (r"\boxed{42", "42"),
        ("", "42"),
        ("I cannot tell.", "42"),
        ("42 pens, then 43", "42"),
        ("The answer is 42e3.", "42"),
        ("It is 84/2/2.", "42"),
        ("#### 42.\nThat took 3 steps.", "3"),
        ("#### 18=19", "18"),
        ("#### 18=19", "19"),
        ("The answer is not 12.", "12"),
        ("The answer isn't 12.", "12"),
        ("I don't think the answer is 12.", "12"),
        ("Answer: not 12", "12"),
        ("The answer is less than 12.", "12"),
        ("The answer is at most 12.", "12"),
        ("The answer is about 12.", "12"),
        ("The answer is the square root of 12.", "12"),
        ("The ratio answer is 3:2.", "3"),
        ("Answer: x > 12", "12"),
        ("It is not 12.", "12"),
        ("It is 19-7.", "7"),
        ("It is 3 x 7.", "7"),
        ("So 5 x 10^3 people.", "10"),
        ("The result is 2^10.", "2"),
        ("She waits 2 1/2 hours.", "0.5"),
        ("It costs 29 dollars and 50 cents.", "50"),
        ("It is 7 degrees below zero.", "7"),
        ("It is 7-fold.", "7"),
    ],
)
def test_other_answers_are_not(completion, gold):
    found = score(VERIFIER, gold, completion)
    assert (found.reward, found.outcome) == (0.0, Outcome.WRONG)


@pytest.mark.parametrize("marked", ["#### 7{}", "The answer is 7{}.", "Answer: 7{}", "So it is 7{}"])
@pytest.mark.parametrize(
    "behind",
    [
        " million", " lakh", "k", " dozen eggs", " 1/2", r"\frac{1}{2}", " and a half", " 000", "^2", "!", " ± 1",
        "**2",
        "×2", "÷2", "·2", r"\cdot 2", "(2)", " < x", ".5.2", ":2", ":30", " 19", " → 19", "; 6", " & 6", " | 6",
        " or 6",
        " apples or 6 apples", " squared", " thirds", " hundredths", " pairs", " less than 9", " below zero",
        " feet 3",
        " not", " is wrong", "x", "²", "½", "万", " dollars and fifty cents", " or more", " times 2", " - 2", "-2",
        "/2",
    ],
)  # fmt: skip
def test_what_stands_behind_a_number_may_make_it_another(marked, behind):
    assert score(VERIFIER, "7", marked.replace("{}", behind)).outcome is Outcome.WRONG


@pytest.mark.parametrize("text", ["#### " * 20_000, "####" + " " * 90_000, "#### 1. a\n" * 9_000, "7 " + "a" * 90_000])
def test_long_texts_are_read_in_a_moment(text):
    start = time.perf_counter()
    assert score(VERIFIER, "3", text).reward == 0.0
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    "gold", ["", "#### ", "none", "see the figure", "x<3", "(1,2)", "3x-y=2", "5 or 6", "9^{9^{9}}"]
)
def test_a_gold_without_a_number_is_unscorable(gold):
    assert VERIFIER.check_gold(prompt_of(gold))
    for completion in ("#### 3", "#### 9", ""):
        assert score(VERIFIER, gold, completion).outcome is Outcome.UNSCORABLE


@settings(deadline=None)
@given(number=st.integers(-(10**9), 10**9), other=st.integers(-(10**9), 10**9))
def test_numbers_compare_by_value(number, other):
    for completion in (f"#### {number:,}", f"So the answer is {number}.", f"\\boxed{{{number}.00}}", f"It is {number}"):
        assert score(VERIFIER, f"work\n#### {number}", completion).reward == 1.0
        assert score(VERIFIER, f"work\n#### {other}", completion).reward == float(number == other)


@settings(max_examples=200, deadline=None)
@given(
    gold=st.text(max_size=20) | st.integers().map(str),
    completion=st.text(alphabet="0123456789.,-+/#$\\{} aA:=\n", max_size=60),
)
def test_no_text_raises(gold, completion):
    found = score(VERIFIER, gold, completion)
    assert (found.reward == 1.0) == (found.outcome is Outcome.CORRECT)
    assert found.reward in (0.0, 1.0)
