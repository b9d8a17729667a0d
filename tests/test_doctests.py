"""The worked examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("vipray", "actors", "jobs")
    for path in (ROOT / package).rglob("*.py")
    if ">>>" in path.read_text()
)


def test_there_are_examples():
    assert {"vipray.advantages", "vipray.dispatch.staleness", "actors.learner_group"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
