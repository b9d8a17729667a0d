"""Waits with a deadline that say what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from vipray.errors import WaitTimeoutError


async def wait_for(awaitable: Awaitable[Any], timeout_s: float, what: str) -> Any:
    """Await a reference for at most `timeout_s` seconds.

    Raises:
        WaitTimeoutError: the deadline passed.
    """
    try:
        return await asyncio.wait_for(_await(awaitable), timeout_s)
    except TimeoutError:
        raise WaitTimeoutError(f"waited {timeout_s:.0f} s for {what} without an answer") from None


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
