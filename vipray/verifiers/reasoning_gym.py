"""Scores by reasoning-gym's own scorers, on the final answer alone.

The scorers pay part of the reward to text that merely contains the answer, or is close to it. So the final answer
is extracted first, and only full marks count as success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from vipray.config import TaskConfig
from vipray.data.prompts import Prompt
from vipray.data.tasks import open_task
from vipray.verifiers.answer_text import CutAnswerError, boxed_or_all, own_words, tagged_answer
from vipray.verifiers.numbers import SCANNED_NUMBER
from vipray.verifiers.protocol import Score

_NUMERIC = re.compile(r"-?\d+(?:\.\d+)?")


class ReasoningGymVerifier:
    """Verifier of the prompts of `data.tasks`."""

    def __init__(self, tasks: Mapping[str, TaskConfig]) -> None:
        self._tasks = dict(tasks)
        self._open = cache(self._open_task)

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for full marks of the task's scorer on the extracted answer, else 0."""
        answer = extract_answer(own_words(prompt.text, completion), prompt.answer)
        if answer is None:
            return Score.wrong("")
        dataset = self._open(prompt.task)
        marks = float(dataset.score_answer(answer, dataset[prompt.index]))
        return Score.correct(answer) if marks >= 1.0 else Score.wrong(answer)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None where the prompt belongs to one of the tasks, else the reason."""
        return None if prompt.task in self._tasks else f"data.tasks has no task {prompt.task!r}"

    def _open_task(self, label: str) -> Any:
        return open_task(label, self._tasks[label])


def extract_answer(completion: str, gold: str) -> str | None:
    r"""Return what a completion gives as its final answer, or None.

    A tagged `<answer>` wins, then a box. For a numeric gold it is the last number, without thousands separators; for
    any other the last line that holds something, without a closing full stop.

    >>> extract_answer("3 + 4 = 7.", "7")
    '7'
    >>> extract_answer("It is 1,024", "1024")
    '1024'
    >>> extract_answer("Let me see.\nThe colour red.", "blue")
    'The colour red'
    """
    try:
        tagged = tagged_answer(completion)
        text = boxed_or_all(completion) if tagged is None else tagged
    except CutAnswerError:
        return None
    if _NUMERIC.fullmatch(gold.strip()):
        numbers = SCANNED_NUMBER.findall(text)
        return re.sub(r"[,\s$€£¥]", "", numbers[-1].replace("−", "-")) if numbers else None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removesuffix(".") if lines else None
