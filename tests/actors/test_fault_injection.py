"""Losing objects on purpose must not end a run by itself."""

from __future__ import annotations

import asyncio

import pytest

from actors.fault_injection import CHAOS_OBJECTS, ObjectLoser, mean_interval_s
from vipray.errors import ConfigError


async def test_a_loser_that_is_lost_itself_is_tried_again_and_due_losses_are_spaced():
    now = [0.0]
    made: list[int] = []

    async def lost_reference():
        made.append(len(made))
        if len(made) == 1:
            raise OSError("gone with its node")
        return f"lost {len(made)}"

    loser = ObjectLoser(5.0, 0, lost_reference, clock=lambda: now[0])
    assert loser("row") == "row"
    await asyncio.sleep(0)
    assert loser("row") == "row"  # nothing is due yet
    now[0] = 1000.0
    assert loser("row") == "row"  # the first attempt has failed
    assert loser("row") == "row"
    await asyncio.sleep(0)
    assert loser("row") == "lost 2"
    assert loser("row") == "row"
    assert len(made) == 2


def test_the_environment_must_name_a_time(monkeypatch):
    monkeypatch.delenv(CHAOS_OBJECTS, raising=False)
    assert mean_interval_s() is None
    monkeypatch.setenv(CHAOS_OBJECTS, "2.5")
    assert mean_interval_s() == 2.5
    for text in ("0", "-1", "soon"):
        monkeypatch.setenv(CHAOS_OBJECTS, text)
        with pytest.raises(ConfigError, match=CHAOS_OBJECTS):
            mean_interval_s()
