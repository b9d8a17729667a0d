"""Real logs and data sets that lie beside the project where somebody put them; tests that need them skip elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_DATA = Path(__file__).parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    """Path of a file in the data folder beside the project; skips the test where there is none."""
    path = _DATA / name
    if not path.exists():
        pytest.skip(f"there is no shared/data/{name} beside the project")
    return path


def shared_cases(area: str) -> list[dict[str, Any]]:
    """The collected fault cases of an area; skips the test where there are none beside the project."""
    path = _DATA.parent / "cases" / "cases.jsonl"
    if not path.exists():
        pytest.skip("there is no shared/cases/cases.jsonl beside the project")
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [case for case in cases if case["area"] == area]
