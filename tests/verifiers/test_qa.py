from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.support import prompt_of
from vipray.records import Outcome
from vipray.verifiers.qa import QaVerifier, exact_match, f1

VERIFIER = QaVerifier()


@pytest.mark.parametrize(
    ("answer", "gold", "is_match", "overlap"),
    [
        ("the rolling stones.", "The Rolling Stones", True, 1.0),
        ("Stones band", "Stones", False, 0.6667),
        ("UK", "U.K.", True, 1.0),
        ("25,000", "25000", True, 1.0),
        ("City of San Francisco", "San Francisco City", False, 0.8571),
        ("", "A", False, 0.0),
        ("the", "A", False, 0.0),
        ("an", "The", False, 0.0),
        ("A", "A", True, 1.0),
        ("a", "The The", False, 0.0),
        ("The The", "The The", True, 1.0),
        ("...", "!!!", False, 0.0),
        ("!!!", "!!!", True, 1.0),
        ("No, never", "no", False, 0.6667),
        ("15", "1.5", False, 0.0),
        ("3", "-3", False, 0.0),
        ("34", "3-4", False, 0.0),
        ("C", "C++", False, 0.0),
        ("c#", "C#", True, 1.0),
        ("“Paris”", "Paris", True, 1.0),
        ("Beyoncé", "beyoncé", True, 1.0),
        ("not Paris", "Paris", False, 0.6667),
        ("911", "9/11", False, 0.0),
        ("12", "1/2", False, 0.0),
        ("½", "1/2", True, 1.0),
        ("247", "24/7", False, 0.0),
        ("1030", "10:30", False, 0.0),
        ("105", "10^5", False, 0.0),
        ("510", "5'10\"", False, 0.0),
        ("(5)(6)", "56", False, 0.0),
        ("x<5", "x>5", False, 0.0),
        ("O", "O-", False, 0.0),
        ("o-", "O-", True, 1.0),
        ("- 5", "5", False, 0.0),
        ("− 5", "-5", True, 1.0),
        ("vitamin", "Vitamin A", False, 0.6667),
        ("the vitamin A", "Vitamin A", True, 1.0),
        ("Plan", "Plan A", False, 0.6667),
        ("AC DC", "AC/DC", False, 0.0),
        ("the", "The The", False, 0.6667),
    ],
)
def test_match_and_overlap(answer, gold, is_match, overlap):
    assert exact_match(answer, [gold]) is is_match
    assert f1(answer, [gold]) == pytest.approx(overlap, abs=5e-5)
    assert VERIFIER.verify(prompt_of(gold), answer).reward == float(is_match)


def test_the_best_alias_counts():
    prompt = prompt_of("United States", aliases=["USA", "US"])
    assert VERIFIER.verify(prompt, "the USA").outcome is Outcome.CORRECT
    assert VERIFIER.verify(prompt, "United Kingdom").reward == 0.0
    assert QaVerifier("f1").verify(prompt, "United Kingdom").reward == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>Paris</answer>", 1.0),
        ("Paris? <answer> Lyon </answer>", 0.0),
        ("<answer>Lyon</answer> no, <answer>Paris</answer>", 1.0),
        ("It is a city.\nAnswer: Paris", 1.0),
        ("The answer is Paris.", 1.0),
        ("<think><answer>Paris</answer>", 0.0),
        ("<answer></answer>Paris", 0.0),
        ("It must be Paris", 0.0),
    ],
)
def test_where_the_answer_is_looked_for(completion, reward):
    assert VERIFIER.verify(prompt_of("Paris"), completion).reward == reward


@pytest.mark.parametrize("gold", ["St. Louis", "J. K. Rowling", "Dr. Seuss", "Mt. St. Helens"])
@pytest.mark.parametrize("form", ["The answer is {}.", "The answer is {}. That is it.", "Answer: {}", "{}"])
def test_the_point_of_an_abbreviation_ends_no_answer(gold, form):
    assert VERIFIER.verify(prompt_of(gold), form.format(gold)).outcome is Outcome.CORRECT


def test_an_answer_that_is_denied_is_none():
    assert VERIFIER.verify(prompt_of("Paris"), "I don't think the answer is Paris.").reward == 0.0


def test_a_tag_in_the_prompt_is_no_answer():
    prompt = prompt_of("Paris", text="Write it as <answer> Paris </answer>. What is the capital of France?")
    assert VERIFIER.verify(prompt, f"{prompt.text} I cannot say.").reward == 0.0
    assert VERIFIER.verify(prompt, f"{prompt.text} <answer>Paris</answer>").reward == 1.0


def test_a_gold_without_text_is_unscorable():
    assert VERIFIER.check_gold(prompt_of(" ", aliases=[""])) == "the gold is empty"
    assert VERIFIER.check_gold(prompt_of("", aliases=["US"])) is None
    assert VERIFIER.verify(prompt_of(""), "").outcome is Outcome.UNSCORABLE


@given(answer=st.text(max_size=30), gold=st.text(max_size=30))
def test_exact_match_is_never_above_f1(answer, gold):
    assert 0.0 <= f1(answer, [gold]) <= 1.0
    assert float(exact_match(answer, [gold])) <= f1(answer, [gold])
    assert f1(answer, [gold]) == f1(answer, [gold, ""])
    if gold.strip():
        assert exact_match(gold, [gold])
        assert not exact_match("", [gold])
