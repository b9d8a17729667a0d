"""Errors a user can act on: each message names the setting or part, the value, and the remedy.

Bad input and configuration raise `ConfigError` (a `ValueError`; the command line prints it as one line and
exits with status 2). Everything that goes wrong during a run derives from `VipRayError`. All of them survive
pickling, because they cross process boundaries.
"""


class ConfigError(ValueError):
    """A setting or an input file is wrong; nothing has been started."""


class VipRayError(RuntimeError):
    """Base class of what can go wrong while a run is under way."""


class ActorStartError(VipRayError):
    """Actors did not come up before their deadline, or died while starting."""


class WaitTimeoutError(VipRayError):
    """A wait passed its deadline; the message says what was waited for and for how long."""


class ActorLostError(VipRayError):
    """An actor was lost and is not replaced any more."""


class ObjectGoneError(VipRayError):
    """An object of the object store is nowhere any more, such as a rollout that was on a node that died."""


class LeaseExpiredError(WaitTimeoutError):
    """A generator that makes others has had a rollout for longer than any takes."""


class GeneratorsExhaustedError(VipRayError):
    """No generator is left to make the rollouts that are still missing."""


class EngineLostError(VipRayError):
    """The processes of an engine are gone, and all of its rollouts with them."""


class RolloutAbortedError(VipRayError):
    """A rollout was given up for new weights; it is to be made again."""


class BatchContractError(VipRayError):
    """A rollout batch does not hold exactly the rollouts that the allocation asked for."""


class VerifierPoolError(VipRayError):
    """The verifier pool cannot start a worker, or has been closed."""


class LearnerGroupError(VipRayError):
    """A rank of the learner group failed, or did not come to a collective in time."""


class CheckpointError(VipRayError):
    """A checkpoint could not be written, or is not one of this run's model."""


class WeightSyncError(VipRayError):
    """An engine did not confirm the weights that it was given."""


def summary_line(error: BaseException) -> str:
    r"""The line of an error that says most: the last one of a remote traceback, else the first.

    >>> summary_line(ValueError("Traceback (most recent call last):\n  ...\nKeyError: 'x'"))
    "KeyError: 'x'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    is_traceback = any(line.startswith(("Traceback", 'File "')) for line in lines)
    return lines[-1] if is_traceback else lines[0]
