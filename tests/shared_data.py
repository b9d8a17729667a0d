"""Real logs and data sets that lie beside the project where somebody put them; tests that need them skip elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

_DATA = Path(__file__).parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    """Path of a file in the data folder beside the project; skips the test where there is none."""
    path = _DATA / name
    if not path.exists():
        pytest.skip(f"there is no shared/data/{name} beside the project")
    return path
