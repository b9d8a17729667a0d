"""The verifier actor: one process of the verifier pool."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from vipray.data.prompts import PromptSet
from vipray.records import ROLLOUT_SCHEMA, Outcome, RolloutId, Verdict
from vipray.verifiers.protocol import Score, Verifier

_log = logging.getLogger(__name__)


class VerifierActor:
    """Scores rollouts one at a time."""

    def __init__(self, build: Callable[[], Verifier], prompts: pa.Table) -> None:
        self._verifier = build()
        self._prompts = PromptSet(prompts)

    def ready(self) -> None:
        """Return once the actor is up."""

    def score(self, rollout: pa.RecordBatch) -> tuple[pa.RecordBatch, Verdict]:
        """Return the rollout with reward, outcome and extracted answer, and the verdict for the controller."""
        (row,) = rollout.to_pylist()
        score = self._verify(row["prompt_id"], row["text"])
        row |= {"reward": score.reward, "outcome": str(score.outcome), "extracted": score.extracted}
        verdict = Verdict(
            rollout_id=RolloutId(row["step"], row["prompt_id"], row["k"]),
            reward=score.reward,
            outcome=Outcome(score.outcome),
            num_tokens=len(row["completion_token_ids"]),
            policy_version=row["policy_version_first"],
        )
        return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA), verdict

    def _verify(self, prompt_id: str, text: str) -> Score:
        prompt = self._prompts.prompt(prompt_id)
        try:
            return self._verifier.verify(prompt, text)
        except Exception as error:  # noqa: BLE001 - foreign code: its fault is an outcome, counted as `rollouts/unscored`
            _log.exception("the scorer of task %s failed on prompt %s", prompt.task, prompt_id)
            return Score(0.0, Outcome.ERROR, f"{type(error).__name__}: {error}")
