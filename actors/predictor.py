"""The predictor actor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray

from vipray.arrays import IntArray
from vipray.data.prompts import PromptSet
from vipray.predictors.protocol import Predictor
from vipray.records import Prediction, Span


class PredictorActor:
    """Holds one predictor; calls are carried out in the order in which they were made."""

    def __init__(
        self, build: Callable[[PromptSet], Predictor], prompts: pa.Table, clock: Callable[[], float] = time.time
    ) -> None:
        self._predictor = build(PromptSet(prompts))
        self._clock = clock

    @ray.method(concurrency_group="health")
    def health(self) -> None:
        """Answer, beside whatever else is under way."""

    def ready(self) -> dict[str, float]:
        """Return the predictor's metrics once it is built."""
        return self._predictor.metrics()

    def predict(self, prompt_ids: Sequence[str]) -> Prediction:
        """Predict a batch before any rollout of it."""
        start = self._clock()
        success_prob, gradient_variance = self._predictor.predict(prompt_ids)
        span = Span(start, self._clock())
        return Prediction(tuple(prompt_ids), success_prob, gradient_variance, span, self._predictor.metrics())

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> Span:
        """Learn from the outcomes of a step; return when that was done."""
        start = self._clock()
        self._predictor.observe(prompt_ids, successes, trials)
        return Span(start, self._clock())

    def state(self) -> dict[str, Any]:
        """The predictor's state after all calls before this one."""
        return self._predictor.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises `ValueError` for one of other prompts."""
        self._predictor.load_state_dict(state)
