"""How long a generator with work may stay silent before it is taken for hung, and how long a rollout may take.

    lease    = max(factor · slowest seconds per token · max_tokens, min_s) + slowest weight load
    silence  = min(lease, max_s)

A generator gives a sign with each rollout that it has made, so the longest honest silence is one longest completion,
at the pace of the slowest that was seen. A fixed deadline fits either the first engine, which compiles, or the
thousandth rollout; this one starts at the most that is allowed and follows the work. What was slowest fades, so that
one bad moment is not remembered for ever. A rollout whose lease has expired was forgotten by a generator that is busy
with others: it is made elsewhere. Until something was observed nobody can say so, and only silence counts.
"""

from __future__ import annotations

import math

_FADE = 0.5 ** (1.0 / 1024)  # by rollout: some steps' worth of them until the slowest weighs half
_PAUSE_FADE = 0.5 ** (1.0 / 16)  # by weight load: one for each generator and step


class WorkDeadlines:
    """Deadlines that are derived from the rollouts made so far.

    Args:
        max_s: longest silence, and the one until a rollout was observed, in seconds, > 0.
        min_s: shortest deadline, > 0; where it is above `max_s`, `max_s` holds.
        factor: how much slower than the slowest a rollout may be, >= 1.

    Raises:
        ValueError: a deadline or a factor that no generator could keep.

    >>> deadline = WorkDeadlines(max_s=600.0)
    >>> deadline.silence_s(max_tokens=1000), deadline.lease_s(max_tokens=1000)
    (600.0, inf)
    >>> deadline.observe(latency_s=4.0, num_tokens=200)  # 20 ms a token
    >>> deadline.silence_s(max_tokens=1000), deadline.silence_s(max_tokens=10)
    (80.0, 15.0)
    >>> deadline.observe_pause(5.0)
    >>> deadline.silence_s(max_tokens=1000)
    85.0
    """

    def __init__(self, max_s: float, min_s: float = 15.0, factor: float = 4.0) -> None:
        if not max_s > 0 or not min_s > 0:
            raise ValueError(f"max_s and min_s must be > 0, got {max_s} and {min_s}")
        if not factor >= 1:
            raise ValueError(f"factor must be >= 1, got {factor}: the slowest rollout itself would be taken for hung")
        self._max_s = max_s
        self._min_s = min_s
        self._factor = factor
        self._seconds_per_token: float | None = None  # None until a rollout was observed
        self._pause_s = 0.0

    def observe(self, latency_s: float, num_tokens: int) -> None:
        """Take in a rollout that was made.

        Args:
            latency_s: from its start to its receipt, >= 0.
            num_tokens: of its completion, >= 0; none counts as one.

        Raises:
            ValueError: a negative value.
        """
        if not latency_s >= 0 or num_tokens < 0:
            raise ValueError(f"latency_s and num_tokens must be >= 0, got {latency_s} and {num_tokens}")
        faded = (self._seconds_per_token or 0.0) * _FADE
        self._seconds_per_token = max(latency_s / max(num_tokens, 1), faded)

    def observe_pause(self, seconds: float) -> None:
        """Take in how long a weight load took, during which a generator makes nothing. Raises `ValueError` if < 0."""
        if not seconds >= 0:
            raise ValueError(f"a pause must be >= 0 s, got {seconds}")
        self._pause_s = max(seconds, self._pause_s * _PAUSE_FADE)

    def silence_s(self, max_tokens: int) -> float:
        """Longest silence of a generator whose completions have at most `max_tokens` tokens, in (0, max_s]."""
        return min(self.lease_s(max_tokens), self._max_s)

    def lease_s(self, max_tokens: int) -> float:
        """How long a generator may have a rollout of at most `max_tokens` tokens; infinite until one was observed."""
        if self._seconds_per_token is None:
            return math.inf
        return max(self._factor * self._seconds_per_token * max_tokens, self._min_s) + self._pause_s

    def metrics(self) -> dict[str, float]:
        """The slowest pace, 0 until a rollout was observed, and the slowest weight load."""
        return {"seconds_per_token": self._seconds_per_token or 0.0, "pause_s": self._pause_s}
