from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers.support import prompt_of, score
from vipray.records import Outcome
from vipray.verifiers.multiple_choice import MultipleChoiceVerifier, read_letters

VERIFIER = MultipleChoiceVerifier()


@pytest.mark.parametrize(
    "gold", ["C", "(C)", "C.", "c", r"\text{(C)}", r"\textbf{(C)}", "C) 42", "(C) The dog", "Option C"]
)
@pytest.mark.parametrize(
    "completion",
    [
        "C",
        "(C)",
        "C.",
        "**C**",
        r"\boxed{C}",
        r"\boxed{\text{(C)}}",
        r"\boxed{\textbf{(C)}\ 42}",
        "<answer>c</answer>",
        "The answer is C.",
        "The answer is (C) because A is too small.",
        "The correct answer is C, the dog.",
        "Answer: C) 42",
        "A is too small and B is too large.\nAnswer: C",
        "So I choose option C.",
        "C. Because of it",
        "<think>A? No.</think>C",
    ],
)
def test_the_letter_is_found_however_it_is_written(gold, completion):
    assert score(VERIFIER, gold, completion).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    "completion",
    [
        "B",
        r"\boxed{A}",
        "The answer is A or C.",
        "The answer is C or D.",
        "Answer: C and D",
        "Answer: (C), (D)",
        "Answer: CD",
        "It could be option C or option D.",
        "The answer is not C.",
        "Cats are C",
        "A, B, C, D",
        "42",
        r"\boxed{C",
        "<think>C",
        "",
    ],
)
def test_other_letters_and_hedges_are_not_paid(completion):
    found = score(VERIFIER, "C", completion)
    assert (found.reward, found.outcome) == (0.0, Outcome.WRONG)


@pytest.mark.parametrize(
    "completion",
    [
        "Answer: A. B. C. D.",
        "Answer: A) B) C) D)",
        "The answer is (B) sky (C) rose",
        "(B) sky (C) rose",
        "Answer: B C D",
        "Answer: B + C",
        "Answer: B | C",
        "Answer: (B)(C)",
        "Answer: B (or C)",
        "Answer: B vs C",
        "Answer: B then C",
        "Answer: B but could be C",
        "Answer: B: wrong, C: right",
        "Answer: B is not correct",
        "Answer: B is eliminated",
        "Answer: B maybe",
        "Either option B or C.",
        "I'd pick between option B and C.",
        "So option B is incorrect.",
        "It is not option B.",
        "I would not choose B.",
        "We eliminate option B.",
        "I don't think the answer is B.",
    ],
)
def test_a_letter_among_others_or_one_that_is_denied_is_not_paid(completion):
    assert score(VERIFIER, "B", completion).outcome is Outcome.WRONG
    assert score(VERIFIER, "A", completion).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "completion",
    [
        "Answer: [B]",
        "The answer is B, not C.",
        "The answer is B because it is not C.",
        "Answer: B. A cat",
        "I choose B.",
    ],
)
def test_a_letter_with_a_reason_or_its_text_is_paid(completion):
    assert score(VERIFIER, "B", completion).outcome is Outcome.CORRECT


def test_the_golds_own_text_is_paid_whatever_it_says():
    assert score(VERIFIER, "(B) Not vitamin D", "The answer is (B) Not vitamin D.").reward == 1.0
    assert score(VERIFIER, "(B) Not vitamin D", "The answer is (B) Not vitamin C.").reward == 0.0


def test_many_letters_are_read_in_a_moment():
    start = time.perf_counter()
    assert not read_letters(" or ".join("ABCDE" * 40) + " maybe")
    assert not read_letters(", ".join("ABCDE" * 60) + " " * 100 + "?")
    assert time.perf_counter() - start < 0.5


def test_the_article_is_no_choice():
    assert score(VERIFIER, "A", "The answer is A triangle of some kind.").reward == 0.0
    assert score(VERIFIER, "A", "The answer is a triangle.").reward == 0.0
    assert score(VERIFIER, "A", "The answer is A.").reward == 1.0


def test_several_letters_must_all_be_named_and_no_others():
    for completion in ("A and C", "C, A", "AC", r"\boxed{A, C}", "The answers are A and C."):
        assert score(VERIFIER, "A, C", completion).reward == 1.0
        assert score(VERIFIER, "AC", completion).reward == 1.0
    for completion in ("A", "C", "A, B, C", "AB"):
        assert score(VERIFIER, "A, C", completion).reward == 0.0


@pytest.mark.parametrize("gold", ["", "42", "the dog", "A triangle", "?"])
def test_a_gold_without_a_letter_is_unscorable(gold):
    assert VERIFIER.check_gold(prompt_of(gold))
    assert score(VERIFIER, gold, gold).outcome is Outcome.UNSCORABLE


@settings(deadline=None)
@given(gold=st.sampled_from("ABCDEFGHIJ"), answer=st.sampled_from("ABCDEFGHIJ"), tail=st.text(max_size=20))
def test_a_boxed_letter_counts_whatever_surrounds_it(gold, answer, tail):
    found = score(VERIFIER, gold, f"{tail.replace('<', ' ')} \\boxed{{{answer}}}")
    assert found.reward == float(gold == answer)
