"""What every verifier can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vipray.data.prompts import Prompt
from vipray.records import Outcome


@dataclass(frozen=True)
class Score:
    """A verifier's judgement: `reward` in [0, 1], the outcome, and what was taken for the answer."""

    reward: float
    outcome: Outcome
    extracted: str


class Verifier(Protocol):
    """Scores completions. Never raises because of what a completion says."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Score one completion of `prompt`."""
