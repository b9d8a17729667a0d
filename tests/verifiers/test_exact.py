from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.support import prompt_of, score
from vipray.records import Outcome
from vipray.verifiers.exact import ExactVerifier

VERIFIER = ExactVerifier()


@pytest.mark.parametrize(
    "completion",
    [
        "033",
        " 033\n",
        "<answer>033</answer>",
        r"So \boxed{033}.",
        "Answer: 033",
        "<think>33</think>033",
        "33?\nAnswer: 033",
    ],
)
def test_the_golds_text_is_paid(completion):
    assert score(VERIFIER, "033", completion).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    "completion", ["33", "0033", "033.0", "<answer>33</answer> 033", "it is 033", "", "<think>033", "033\nAnswer: 33"]
)
def test_any_other_text_is_not(completion):
    found = score(VERIFIER, "033", completion)
    assert (found.reward, found.outcome) == (0.0, Outcome.WRONG)


def test_case_and_inner_space_count():
    assert score(VERIFIER, "New York", "new york").reward == 0.0
    assert score(VERIFIER, "New York", "New  York").reward == 0.0


def test_an_empty_gold_is_unscorable():
    assert VERIFIER.check_gold(prompt_of(" \n"))
    assert score(VERIFIER, " \n", "").outcome is Outcome.UNSCORABLE


@given(gold=st.text(min_size=1).filter(str.strip))
def test_every_gold_answers_itself(gold):
    assert score(VERIFIER, gold, gold).reward in (0.0, 1.0)
    if "<" not in gold:
        assert score(VERIFIER, gold, gold).outcome is Outcome.CORRECT
