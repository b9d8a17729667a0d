"""What every predictor can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vipray.arrays import FloatArray, IntArray


class Predictor(Protocol):
    """Predicts success probabilities before any rollout and learns from verified outcomes."""

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] in [0, 1] and `gradient_variance` [B], `E[4 p (1 - p)]` in [0, 1]."""

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Learn from [B] successes out of [B] trials; prompts with zero trials are no evidence."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to predict the same again."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises `ValueError`, and changes nothing, for one of other prompts or another kind."""

    def metrics(self) -> dict[str, float]:
        """Figures about the predictor itself, by name."""
