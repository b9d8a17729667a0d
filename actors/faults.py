"""What an error of a remote call says: that the actor is gone, that an object is, or that the code raised."""

from __future__ import annotations

from enum import StrEnum

from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    ObjectRefStreamEndOfStreamError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from vipray.errors import LearnerGroupError, WaitTimeoutError, summary_line

_NODE_DIED = "node has died"  # part of Ray's message
_YIELD_S = 3.0
_LONGEST_REASON = 300  # characters; what follows are hints at log files
_LOSSES = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError)


class Fault(StrEnum):
    """What failed."""

    ACTOR_LOST = "actor lost"  # it died, or it does not answer
    OBJECT_LOST = "object lost"  # what the call was given, or what it gave, is nowhere any more
    RAISED = "raised"  # by the code that was called: another actor would fare no better


def fault_of(error: BaseException) -> Fault:
    """Classify an error of a call.

    A call whose arguments are lost fails with a `RayTaskError` that is an `ActorDiedError` as well: the actor that died
    is not the one that was called, so the order of the questions matters.
    """
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, LearnerGroupError):  # a rank missed another one
            return Fault.ACTOR_LOST
        if isinstance(cause, RayTaskError):  # what an argument's own call ended with
            return Fault.RAISED if fault_of(cause) is Fault.RAISED else Fault.OBJECT_LOST
        return Fault.OBJECT_LOST if isinstance(cause, _LOSSES) else Fault.RAISED
    if isinstance(error, ObjectLostError | ObjectRefStreamEndOfStreamError):
        return Fault.OBJECT_LOST
    return Fault.ACTOR_LOST if isinstance(error, RayError | WaitTimeoutError) else Fault.RAISED


def is_death_of_a_node(error: BaseException) -> bool:
    """Whether an actor was lost with its node, or with the way to it: that says nothing of its work."""
    if isinstance(error, ActorUnavailableError):
        return True
    return isinstance(error, RayActorError) and (error.preempted or _NODE_DIED in str(error))


def describe(error: BaseException) -> str:
    """One line on an error; of an actor's death, Ray's reason for it and not that it was unexpected."""
    if isinstance(error, ActorDiedError) and not isinstance(error, RayTaskError):
        reasons = [line for line in str(error).splitlines()[1:] if line.strip() and not line.startswith("\t")]
        if reasons:
            return reasons[0][:_LONGEST_REASON]
    return summary_line(error)


def yield_s(error: BaseException, *, has_deputy: bool) -> float:
    """How long a replacement waits for others to start, in seconds.

    A node's actors are all started again at the same moment. Those that nobody stands in for go first: the work of the
    others is done elsewhere already.
    """
    return _YIELD_S if has_deputy and is_death_of_a_node(error) else 0.0
