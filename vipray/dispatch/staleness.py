"""How old the policy may be that a batch was sampled by.

The batch of step t is trained while the learner is at version t; training makes version t + 1. A rollout whose first,
and so oldest, token was sampled by version v is `t - v` versions old when it is trained:

    t - v <= max_staleness        may enter the batch of step t
    t - v <  0                    was sampled by a version that the learner has lost in a restart: may not

The age is known when a rollout starts, so that the bound can be kept in two ways (`on_stale`):

    wait      nothing is started on a version that would be too old; a generator waits for the next one
    reissue   rollouts are sent one version ahead of the bound: those that the engine samples only after it has loaded
              the next version are fine and have saved a wait; the others are dropped at the batch's door and made again

Either way every rollout passes the door, so that the bound does not depend on who started what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

ON_STALE = ("wait", "reissue")


class StalenessAction(StrEnum):
    """What becomes of a rollout."""

    START = "start"
    WAIT = "wait"
    ADMIT = "admit"
    REISSUE = "reissue"
    DROP = "drop"


@dataclass(frozen=True)
class StalenessDecision:
    """An action and why."""

    action: StalenessAction
    reason: str


@dataclass(frozen=True)
class StalenessPolicy:
    """The bound, and how it is kept.

    Attributes:
        max_staleness: versions that the oldest token of a trained rollout may lag behind the learner; 0: on-policy.
        on_stale: `wait` or `reissue`.

    Raises:
        ValueError: a negative bound, or another word.
    """

    max_staleness: int = 0
    on_stale: str = "wait"

    def __post_init__(self) -> None:
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness must be >= 0, got {self.max_staleness}")
        if self.on_stale not in ON_STALE:
            raise ValueError(f"on_stale must be one of {', '.join(ON_STALE)}, got {self.on_stale!r}")

    @property
    def max_lead(self) -> int:
        """Steps that a generator may be ahead of its confirmed version."""
        return self.max_staleness + (self.on_stale == "reissue")

    def may_start(self, step: int, confirmed_version: int | None, *, is_retry: bool = False) -> StalenessDecision:
        """Decide whether a generator may start rollouts of a step.

        Args:
            step: the step whose batch they are for.
            confirmed_version: what the generator's engine has confirmed; None before its first version.
            is_retry: they were too old once: nothing is risked a second time.

        >>> StalenessPolicy(max_staleness=1).may_start(5, 3).reason
        'step 5 on version 3 would be 2 versions old, more than 1'
        """
        if confirmed_version is None:
            return StalenessDecision(StalenessAction.WAIT, "the generator has confirmed no version yet")
        lead = step - confirmed_version
        what = f"step {step} on version {confirmed_version}"
        if lead < 0:
            return StalenessDecision(StalenessAction.WAIT, f"{what}: the learner does not come back to that step")
        most = self.max_staleness if is_retry else self.max_lead
        if lead > most:
            reason = f"{what} would be {_versions(lead)} old, more than {most}"
            return StalenessDecision(StalenessAction.WAIT, reason)
        return StalenessDecision(StalenessAction.START, f"{what} is at most {_versions(lead)} old")

    def at_entry(self, step: int, policy_version_first: int) -> StalenessDecision:
        """Decide whether a finished rollout may enter the batch of its step.

        Args:
            step: the step whose batch it is for.
            policy_version_first: version that sampled its first token.

        >>> StalenessPolicy(max_staleness=1).at_entry(5, 4).action.value
        'admit'
        """
        age = step - policy_version_first
        what = f"version {policy_version_first} in step {step}"
        if age < 0:
            return StalenessDecision(StalenessAction.REISSUE, f"{what}: the learner no longer has that version")
        if age > self.max_staleness:
            reason = f"{what} is {_versions(age)} old, more than {self.max_staleness}"
            return StalenessDecision(StalenessAction.REISSUE, reason)
        return StalenessDecision(StalenessAction.ADMIT, f"{what} is {_versions(age)} old")


def staleness_metrics(step: int, versions_first: Sequence[int]) -> dict[str, float]:
    """Mean and largest age, in versions, of a batch's rollouts by their oldest token."""
    ages = [step - version for version in versions_first]
    return {"mean": sum(ages) / len(ages), "max": float(max(ages))} if ages else {}


def _versions(number: int) -> str:
    return "1 version" if number == 1 else f"{number} versions"
