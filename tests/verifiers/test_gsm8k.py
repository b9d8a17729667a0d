from __future__ import annotations

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
    ],
)
def test_other_answers_are_not(completion, gold):
    found = score(VERIFIER, gold, completion)
    assert (found.reward, found.outcome) == (0.0, Outcome.WRONG)


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
