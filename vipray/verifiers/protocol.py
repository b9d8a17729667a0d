"""What every verifier can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vipray.data.prompts import Prompt
from vipray.records import Outcome

_MAX_EXTRACTED = 2_000  # characters: more says nothing to a reader of the log


@dataclass(frozen=True)
class Score:
    """A verifier's judgement, in plain values that any process can read and print.

    Attributes:
        reward: in [0, 1]; 0 unless the outcome is `correct` or `wrong`.
        outcome: what was found; only `correct` and `wrong` are evidence.
        extracted: what was taken for the answer; empty where there was none.
        reason: why the answer was not paid; empty for a plain right or wrong one.
    """

    reward: float
    outcome: Outcome
    extracted: str
    reason: str = ""

    @classmethod
    def correct(cls, extracted: str) -> Score:
        """Full reward."""
        return cls(1.0, Outcome.CORRECT, extracted[:_MAX_EXTRACTED])

    @classmethod
    def wrong(cls, extracted: str, reason: str = "") -> Score:
        """No reward, and evidence that the policy failed."""
        return cls(0.0, Outcome.WRONG, extracted[:_MAX_EXTRACTED], reason)

    @classmethod
    def refused(cls, extracted: str, reason: str) -> Score:
        """No reward and no evidence: working the answer out would not end in time, so it was not begun."""
        return cls(0.0, Outcome.TIMEOUT, extracted[:_MAX_EXTRACTED], f"refused before it was worked out: {reason}")

    @classmethod
    def unscorable(cls, reason: str) -> Score:
        """No reward and no evidence: the gold cannot be graded."""
        return cls(0.0, Outcome.UNSCORABLE, "", reason)

    @classmethod
    def error(cls, reason: str) -> Score:
        """No reward and no evidence: the verifier itself failed."""
        return cls(0.0, Outcome.ERROR, "", reason)


class Verifier(Protocol):
    """Scores completions. Never raises because of what a completion says."""

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Score one completion of `prompt`."""

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None where the prompt's gold can be graded, else the reason why not."""
