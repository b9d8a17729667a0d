"""A user's own function as the verifier: `module:callable`.

The function takes `(completion, answer)` and returns a number in [0, 1]; or, where its first parameter is called
`completions`, two lists, and returns one number for each. The lists are for functions that were written for batches:
a worker scores one answer at a time, each against its own clock, so that in a run they hold one item.

Whatever breaks this contract (an exception, None, NaN, a number outside of [0, 1], a wrong count) gives the outcome
`error`, whose reason names the function: such a rollout is never trained on. A reward of 1 is `correct`, anything below
is `wrong`.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.protocol import Score

_BATCH_PARAMETER = "completions"


class FunctionVerifier:
    """Verifier that asks a user's function.

    Args:
        function: `module:callable`; the module must be importable.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """

    def __init__(self, function: str) -> None:
        self._name = function
        self._function = load_function(function)
        self._takes_batch = _first_parameter(self._function) == _BATCH_PARAMETER

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward what the function says of one completion."""
        return self.verify_batch([prompt], [completion])[0]

    def verify_batch(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Score]:
        """Reward what the function says of several completions, in order; in one call where it takes a batch."""
        answers = [prompt.answer for prompt in prompts]
        if not self._takes_batch:
            return [self._one(completion, answer) for completion, answer in zip(completions, answers, strict=True)]
        rewards, reason = self._call(list(completions), answers)
        if not reason:
            rewards, reason = self._as_list(rewards, len(answers))
        if reason:
            return [Score.error(reason) for _ in answers]
        return [self._score(reward, completion) for reward, completion in zip(rewards, completions, strict=True)]

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None: what can be graded is the function's business."""
        return None

    def _one(self, completion: str, answer: str) -> Score:
        reward, reason = self._call(completion, answer)
        return Score.error(reason) if reason else self._score(reward, completion)

    def _call(self, completion: Any, answer: Any) -> tuple[Any, str]:
        """Return what the function returns, and what went wrong."""
        try:
            return self._function(completion, answer), ""
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code: its fault is an outcome, with its reason
            return None, f"{self._name} raised {type(error).__name__}: {error}"

    def _as_list(self, rewards: Any, num_wanted: int) -> tuple[list[Any], str]:
        try:
            found = list(rewards)
        except TypeError:
            return [], f"{self._name} returned {_shown(rewards)} for a batch: return one number for each completion"
        if len(found) != num_wanted:
            return [], f"{self._name} returned {len(found)} rewards for {num_wanted} completions"
        return found, ""

    def _score(self, reward: Any, completion: str) -> Score:
        number = _number(reward)
        if number is None or not 0.0 <= number <= 1.0:
            return Score.error(f"{self._name} returned {_shown(reward)}: return a number in [0, 1]")
        return Score(number, Outcome.CORRECT if number == 1.0 else Outcome.WRONG, completion.strip()[-200:])


def load_function(function: str) -> Callable[..., Any]:
    """Return the callable behind `module:callable`.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    module_name, _, path = function.partition(":")
    if not module_name or not path:
        raise ConfigError(f"verifier function {function!r}: write it as module:callable, such as my_rewards:score")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise ConfigError(
            f"verifier function {function!r} cannot be imported: {type(error).__name__}: {error}; "
            "put its module on the Python path"
        ) from error
    if not callable(found):
        raise ConfigError(f"verifier function {function!r} is {_shown(found)}, which cannot be called")
    return found


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # built in C
        return ""


def _number(reward: Any) -> float | None:
    """Return a finite number as a float; a zero-dimensional array counts as its number."""
    if not isinstance(reward, Real) and getattr(reward, "shape", None) == () and hasattr(reward, "item"):
        reward = reward.item()
    if not isinstance(reward, Real):
        return None
    number = float(reward)
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
