"""Waits with a deadline that say what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from vipray.errors import WaitTimeoutError


async def wait_for(awaitable: Awaitable[Any], timeout_s: float, what: str) -> Any:
    """Await a reference for at most `timeout_s` seconds. Its own errors come through as they are.

    `asyncio.wait_for` cannot be used: an actor's own TimeoutError would look like a deadline that has passed.

    Raises:
        WaitTimeoutError: the deadline passed.
    """
    task = asyncio.ensure_future(_await(awaitable))
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if task.done():
            return task.result()
    finally:
        task.cancel()
    raise WaitTimeoutError(f"waited {timeout_s:g} s for {what} without an answer")


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
