"""Whether a lost actor is replaced, and when: a back-off that doubles, and a budget for each stretch of time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from vipray.config import RestartConfig


class RestartAction(StrEnum):
    """What becomes of a lost actor's place."""

    RESTART = "restart"
    GIVE_UP = "give_up"


@dataclass(frozen=True)
class RestartDecision:
    """An action, how long to wait before it, and why."""

    action: RestartAction
    delay_s: float
    reason: str


class RestartPolicy:
    """Decides about the replacements of one kind of actor. The clock is the caller's.

    The first loss in a while is made good after `backoff_s`, each further one within the window after twice as long,
    `max_backoff_s` at most. A loss beyond the budget is not made good: what keeps dying would take up the machine.

    Args:
        max_restarts: replacements within the window; 0 replaces nothing.
        window_s: length of the window, in seconds.
        backoff_s: first delay.
        max_backoff_s: longest delay.
    """

    def __init__(self, max_restarts: int, window_s: float, backoff_s: float, max_backoff_s: float = 60.0) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._restarts: deque[float] = deque()

    @classmethod
    def of(cls, config: RestartConfig) -> RestartPolicy:
        """The policy that a configuration asks for."""
        return cls(config.max_restarts, config.window_s, config.backoff_s)

    def decide(self, now_s: float) -> RestartDecision:
        """Decide about a loss that was found at `now_s`, and count the replacement if there is one.

        >>> policy = RestartPolicy(max_restarts=2, window_s=60.0, backoff_s=1.0)
        >>> [policy.decide(at).delay_s for at in (0.0, 1.0)]
        [1.0, 2.0]
        >>> policy.decide(2.0).reason
        '2 replacements within 60 s are the most that are made'
        """
        while self._restarts and self._restarts[0] <= now_s - self._window_s:
            self._restarts.popleft()
        recent = len(self._restarts)
        if recent >= self._max_restarts:
            reason = f"{self._max_restarts} replacements within {self._window_s:g} s are the most that are made"
            return RestartDecision(RestartAction.GIVE_UP, 0.0, reason)
        self._restarts.append(now_s)
        delay_s = min(self._backoff_s * 2.0**recent, self._max_backoff_s)
        reason = f"replacement {recent + 1} of at most {self._max_restarts} within {self._window_s:g} s"
        return RestartDecision(RestartAction.RESTART, delay_s, reason)
