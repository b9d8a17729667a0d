from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from tests.verifiers.support import prompt_of
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.build import VERIFIERS, build_verifier
from vipray.verifiers.function import FunctionVerifier


def equal(completion, answer):
    return completion == answer


def partly(completion, answer):
    return 0.5


def fails(completion, answer):
    raise KeyError("no such thing")


def leaves(completion, answer):
    sys.exit(3)


def batch_of_lengths(completions, answers):
    return [min(len(completion) / 10, 1.0) for completion in completions]


def batch_too_short(completions, answers):
    return [1.0] * (len(completions) - 1)


def batch_of_nothing(completions, answers):
    return None


def batch_partly_bad(completions, answers):
    return [1.0, float("nan"), None][: len(completions)]


NOT_A_FUNCTION = 3
HERE = __name__


def verify_all(function, completions, answer="yes"):
    return FunctionVerifier(f"{HERE}:{function}").verify_batch([prompt_of(answer)] * len(completions), completions)


def test_a_reward_of_one_is_correct_and_anything_below_is_wrong():
    found = verify_all("equal", ["yes", "no"])
    assert [(each.reward, each.outcome) for each in found] == [(1.0, Outcome.CORRECT), (0.0, Outcome.WRONG)]
    (partial,) = verify_all("partly", ["yes"])
    assert (partial.reward, partial.outcome) == (0.5, Outcome.WRONG)


def test_a_batch_function_is_called_once_for_all():
    assert [each.reward for each in verify_all("batch_of_lengths", ["", "12345", "1" * 20])] == [0.0, 0.5, 1.0]
    assert FunctionVerifier(f"{HERE}:batch_of_lengths").verify(prompt_of("x"), "12").reward == 0.2


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("fails", "raised KeyError: 'no such thing'"),
        ("leaves", "raised SystemExit: 3"),
        ("batch_too_short", "returned 2 rewards for 3 completions"),
        ("batch_of_nothing", "returned None for a batch"),
    ],
)
def test_a_broken_contract_is_an_error_that_names_the_function(function, what):
    found = verify_all(function, ["a", "b", "c"])
    assert [(each.reward, each.outcome) for each in found] == [(0.0, Outcome.ERROR)] * 3
    assert all(f"{HERE}:{function} {what}" in each.reason for each in found)


def test_one_bad_reward_of_a_batch_leaves_the_others():
    found = verify_all("batch_partly_bad", ["a", "b", "c"])
    assert [each.outcome for each in found] == [Outcome.CORRECT, Outcome.ERROR, Outcome.ERROR]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -0.1, 1.1, "1", [1.0], 1j, np.array([1.0])])
def test_only_numbers_in_0_1_are_rewards(value, monkeypatch):
    module = types.SimpleNamespace(score=lambda completion, answer: value)
    monkeypatch.setitem(sys.modules, "made_rewards", module)
    found = FunctionVerifier("made_rewards:score").verify(prompt_of("x"), "x")
    assert (found.reward, found.outcome) == (0.0, Outcome.ERROR)
    assert "made_rewards:score returned" in found.reason


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1.0), np.bool_(True), np.array(1.0)])
def test_every_kind_of_number_is_a_reward(value, monkeypatch):
    module = types.SimpleNamespace(score=lambda completion, answer: value)
    monkeypatch.setitem(sys.modules, "made_rewards", module)
    found = FunctionVerifier("made_rewards:score").verify(prompt_of("x"), "x")
    assert (type(found.reward), found.reward, found.outcome) == (float, 1.0, Outcome.CORRECT)


@pytest.mark.parametrize(
    "function", ["", "score", "no.such.module:score", f"{HERE}:no_such_function", f"{HERE}:NOT_A_FUNCTION", f"{HERE}:"]
)
def test_what_is_no_function_is_refused_by_name(function):
    with pytest.raises(ConfigError, match="verifier function") as raised:
        FunctionVerifier(function)
    assert repr(function) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_verifier_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="unknown verifier 'maths': choose one of") as raised:
        build_verifier("maths")
    assert all(name in str(raised.value) for name in VERIFIERS)


def test_a_function_goes_with_the_function_verifier_alone():
    assert isinstance(build_verifier("function", function=f"{HERE}:equal"), FunctionVerifier)
    with pytest.raises(ConfigError, match="only 'function' takes one"):
        build_verifier("math", function=f"{HERE}:equal")
