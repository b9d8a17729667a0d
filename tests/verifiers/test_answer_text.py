"""What a completion says as its own answer: echoes, thinking, stop tokens and run-ons."""

from __future__ import annotations

import time

import pytest

from vipray.verifiers.answer_text import is_denied, marked_answer, own_words, tagged_answer

PROMPT = "Find the smallest whole number n\nwith n + 3 > 15."
FLAT = " ".join(PROMPT.split())


def answer_of(completion, prompt=PROMPT):
    return marked_answer(own_words(prompt, completion))


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (f"{PROMPT}\nAnswer: 13", "13"),
        (f"{FLAT} Answer: 13", "13"),
        (f"Once more. {FLAT} Answer: 13", "13"),
        (f"Answer: 12\n\n{PROMPT}\nAnswer: 13", "12"),
        (f"\\boxed{{12}} {FLAT} \\boxed{{13}}", "12"),
        (f"#### 12\n{PROMPT}\n#### 13", "12"),
        (f"<think>{PROMPT} \\boxed{{4}} {PROMPT}</think>{PROMPT} \\boxed{{13}}", "13"),
        (f"{PROMPT} {PROMPT}", None),
    ],
)
def test_an_echo_before_the_answer_is_skipped_and_one_after_it_ends_the_text(completion, answer):
    assert answer_of(completion) == answer


@pytest.mark.parametrize(
    ("prompt", "completion", "left"),
    [("12", "12", "12"), ("1", "12", "12"), ("2+2", "2+2=4", "2+2=4"), ("2+2?", "2+2? 4", " 4"), ("7", "7 8", " 8")],
)
def test_a_short_prompt_is_an_echo_only_in_front_of_something_else(prompt, completion, left):
    assert own_words(prompt, completion) == left


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("<THINK>", "</THINK>"),
        ("<thinking>", "</thinking>"),
        ("<reasoning>", "</reasoning>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ],
)
def test_thinking_holds_no_answer(opening, closing):
    assert answer_of(rf"{opening} so \boxed{{3}}") is None
    assert answer_of(rf"{opening} so \boxed{{3}}{closing}") is None
    assert answer_of(rf"{opening} so {closing} and {opening} \boxed{{3}}") is None
    assert answer_of(rf"{opening} so \boxed{{3}}{closing} \boxed{{4}}") == "4"


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>"])
def test_the_text_ends_at_a_stop_token(token):
    assert answer_of(f"Answer: 3{token}") == "3"
    assert answer_of(rf"\boxed{{3}}{token}{token}user\n\boxed{{4}}") == "3"
    assert answer_of(f"The answer is 3.{token}") == "3"


def test_the_tokens_that_open_a_turn_are_skipped():
    assert answer_of("<|im_start|>assistant\nAnswer: 3<|im_end|>") == "3"
    assert answer_of("<|im_end|>\n<|im_start|>user\nAnswer: 3") is None


def test_a_run_on_begins_after_an_answer_only():
    assert answer_of("Here is the answer.\n**Problem:** 1+3\n**Solution:** \\boxed{4}") == "4"
    assert answer_of("\\boxed{4}\n**Problem:** 1+8\n**Solution:** \\boxed{9}") == "4"


def test_a_number_with_a_full_stop_is_no_heading():
    assert marked_answer("#### 42.\nThat took 3 steps.") == "42."
    assert marked_answer("#### 1. Add\n#### 42") == "42"


def test_a_tag_ends_at_the_first_closing_one():
    assert tagged_answer("<answer>3</answer> or <Answer>4 <answer>5</ANSWER> </answer>") == "4 <answer>5"
    assert tagged_answer("</answer> 3 <answer>") is None


def test_denials_reach_as_far_as_their_clause():
    assert is_denied("I don't think the answer is")
    assert is_denied("It is impossible that x is")
    assert not is_denied("It is not even, so x is")
    assert not is_denied("Nothing else is possible: x is")


@pytest.mark.parametrize(
    "text", ["<answer>" * 20_000, "#" * 160_000, "answer\nQ:\n" * 16_000, "<answer>" + "a" * 160_000]
)
def test_long_texts_cost_little(text):
    started = time.monotonic()
    answer_of(text)
    assert time.monotonic() - started < 2.0
