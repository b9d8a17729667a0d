from __future__ import annotations

import pytest

from vipray.config import TaskConfig
from vipray.data.tasks import read_tasks
from vipray.records import Outcome
from vipray.verifiers.protocol import Score
from vipray.verifiers.reasoning_gym import ReasoningGymVerifier, extract_answer

TASKS = {
    "sums": TaskConfig("chain_sum", 5, 1, {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}),
    "words": TaskConfig("spell_backward", 5, 1),
}
VERIFIER = ReasoningGymVerifier(TASKS)
PROMPTS = {prompt.prompt_id: prompt for prompt in read_tasks(TASKS)}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=lambda prompt: prompt.prompt_id)
def test_every_gold_scores_itself_bare_and_tagged(prompt):
    for completion in (prompt.answer, f"Let me think.\n<answer>{prompt.answer}</answer>"):
        assert VERIFIER.verify(prompt, completion) == Score(1.0, Outcome.CORRECT, prompt.answer)


def test_text_that_merely_contains_the_answer_is_not_paid():
    prompt = PROMPTS["sums/0000"]
    assert VERIFIER.verify(prompt, f"{prompt.answer} or maybe 7").reward == 0.0
    wrong = VERIFIER.verify(prompt, f"The answer is {int(prompt.answer) + 1}.")
    assert wrong == Score(0.0, Outcome.WRONG, str(int(prompt.answer) + 1))


@pytest.mark.parametrize("completion", ["", "   \n", "no digits here", "<answer></answer>"])
def test_no_answer_is_wrong_and_not_an_error(completion):
    assert VERIFIER.verify(PROMPTS["sums/0000"], completion) == Score(0.0, Outcome.WRONG, "")


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("3 + 4 = 7", "7", "7"),
        ("It is -4.", "-4", "-4"),
        ("1,024 bytes", "1024", "1024"),
        ("<answer>5</answer> and then 9", "5", "5"),
        ("so\nThe word is dog.", "god", "The word is dog"),
        ("none", "7", None),
    ],
)
def test_what_counts_as_the_final_answer(completion, gold, expected):
    assert extract_answer(completion, gold) == expected
