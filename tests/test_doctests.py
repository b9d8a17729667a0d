"""The worked examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "vipray.advantages",
    "vipray.allocation.exact",
    "vipray.allocation.objectives",
    "vipray.allocation.policies",
    "vipray.allocation.relaxed",
    "vipray.predictors.moments",
    "vipray.dispatch.restarts",
    "vipray.dispatch.staleness",
    "vipray.errors",
    "vipray.verifiers.reasoning_gym",
]


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
