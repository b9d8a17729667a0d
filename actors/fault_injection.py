"""Loses objects on purpose, where the environment asks for it; everything else can be killed from outside."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from vipray.errors import ConfigError, summary_line

_log = logging.getLogger(__name__)
CHAOS_OBJECTS = "VIPRAY_CHAOS_OBJECTS"  # mean seconds between two losses


class ObjectLoser:
    """Now and then puts a lost reference in the place of a scored rollout's.

    Args:
        mean_interval_s: between two losses; the intervals are exponential.
        seed: of the intervals.
        lost_reference: makes a reference to an object that is nowhere any more.
        clock: seconds.
    """

    def __init__(
        self,
        mean_interval_s: float,
        seed: int,
        lost_reference: Callable[[], Awaitable[Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mean_interval_s = mean_interval_s
        self._draws = np.random.default_rng([seed, 1])
        self._lost_reference = lost_reference
        self._clock = clock
        self._due_s = clock() + self._interval_s()
        self._making: asyncio.Future[Any] | None = None

    def __call__(self, scored: Any) -> Any:
        """Return the reference, or one that is lost."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._lost_reference())
        if self._clock() < self._due_s or not self._making.done():
            return scored
        made, self._making = self._making, None
        if (error := made.exception()) is not None:  # who was to lose an object was lost before, with a node say
            _log.warning("no object is lost this time: %s", summary_line(error))
            return scored
        lost = made.result()
        self._due_s = self._clock() + self._interval_s()
        return lost

    def _interval_s(self) -> float:
        return float(self._draws.exponential(self._mean_interval_s))


def mean_interval_s() -> float | None:
    """What the environment asks for; None: nothing.

    Raises:
        ConfigError: it is no positive number.
    """
    text = os.environ.get(CHAOS_OBJECTS)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ConfigError(f"the environment's {CHAOS_OBJECTS}={text!r} must be a number of seconds > 0")
    return value
