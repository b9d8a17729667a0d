r"""Exactly the gold's text, character by character.

The answer is what is marked as such (`<answer>`, `\boxed{…}`, a line `Answer: …`; see `answer_text`), else the whole
completion after thinking and an echo of the prompt. Only the white space around it is not compared: `033` is not
`33`, `Yes` is not `yes`.
"""

from __future__ import annotations

from vipray.data.prompts import Prompt
from vipray.verifiers.answer_text import CutAnswerError, marked_answer, own_words
from vipray.verifiers.protocol import Score


class ExactVerifier:
    """Verifier of answers that must be the gold to the character."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for the gold's text, else 0."""
        reason = self.check_gold(prompt)
        if reason is not None:
            return Score.unscorable(reason)
        text = own_words(prompt.text, completion).strip()
        gold = prompt.answer.strip()
        if text == gold:
            return Score.correct(text)
        try:
            marked = marked_answer(text)
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        answer = text if marked is None else marked.strip()
        if not answer:
            return Score.wrong("", "no answer was found")
        return Score.correct(answer) if answer == gold else Score.wrong(answer)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None unless the gold is empty."""
        return None if prompt.answer.strip() else "the gold is empty"
