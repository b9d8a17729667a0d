from __future__ import annotations

from collections.abc import Sequence

from vipray.data.prompts import Prompt
from vipray.verifiers.protocol import Score, Verifier

QUESTION = "What is it?"


def prompt_of(answer: str, verifier: str = "math", *, aliases: Sequence[str] = (), text: str = QUESTION) -> Prompt:
    return Prompt("p", "t", 0, text, answer, verifier, tuple(aliases))


def boxed(answer: str) -> str:
    return rf"So it is \boxed{{{answer}}}."


def score(verifier: Verifier, gold: str, completion: str) -> Score:
    return verifier.verify(prompt_of(gold), completion)
