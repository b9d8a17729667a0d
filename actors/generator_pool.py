"""The generators that are left, and the versions that they have confirmed.

Each generator has a loader of its own, which brings it the newest version as soon as it is free: no generator waits for
another, and a slow one skips what has become old meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.waiting import wait_for
from vipray.errors import GeneratorsExhaustedError, WaitTimeoutError, WeightSyncError, summary_line
from vipray.records import Span

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """References to a published version: its manifest and its chunks, in the manifest's order."""

    version: int
    manifest: Any
    chunks: Sequence[Any]


class PoolListener:
    """Is told what happens to generators; does nothing by itself."""

    def on_confirmed(self, generator_id: str, version: int, span: Span) -> None:
        """A generator has confirmed a version, which it took in `span`."""

    def on_lost(self, generator_id: str, at_s: float) -> None:
        """A generator is out of the pool, since `at_s`."""

    def on_failed(self, error: BaseException) -> None:
        """Something went wrong that no other generator can make up for."""


class GeneratorPool:
    """Generators by id. A lost one is ended, so that its engine takes no more of the machine.

    Args:
        handles: by generator id.
        discard: ends an actor at once.
        load_timeout_s: longest wait for a generator to take a version.
        clock: wall-clock seconds.
    """

    def __init__(
        self,
        handles: Mapping[str, Any],
        discard: Callable[[Any], None],
        load_timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self.handles = dict(handles)
        self.versions: dict[str, int] = {}  # confirmed
        self.last_error: Exception | None = None
        self.listeners: list[PoolListener] = []
        self._discard = discard
        self._load_timeout_s = load_timeout_s
        self._wanted: Publication | None = None
        self._loaders: dict[str, asyncio.Task[None]] = {}

    def lose(self, generator_id: str, error: Exception) -> None:
        """Take a generator out of the pool; does nothing when it is out already."""
        handle = self.handles.pop(generator_id, None)
        if handle is not None:
            _log.warning("generator %s is lost: %s", generator_id, summary_line(error))
            self.last_error = error
            self.versions.pop(generator_id, None)
            self._discard(handle)
            for listener in self.listeners:
                listener.on_lost(generator_id, self._clock())

    def require(self, what: str) -> None:
        """Raise `GeneratorsExhaustedError`, with the last loss as its cause, when no generator is left."""
        if not self.handles:
            cause = "there was none" if self.last_error is None else summary_line(self.last_error)
            raise GeneratorsExhaustedError(
                f"all generators are lost, {what}; the last one: {cause}"
            ) from self.last_error

    def publish(self, publication: Publication) -> None:
        """Let every generator take a version as soon as it can."""
        self._wanted = publication
        for generator_id in self.handles:
            if generator_id not in self._loaders or self._loaders[generator_id].done():
                loader = asyncio.create_task(self._load_newest(generator_id))
                loader.add_done_callback(self._loaded)
                self._loaders[generator_id] = loader

    async def settled(self) -> None:
        """Wait until every generator that is left has taken the newest version.

        Raises:
            WeightSyncError: a generator confirmed another version than it was given.
            GeneratorsExhaustedError: none is left.
        """
        await asyncio.gather(*self._loaders.values())
        self.require("none took a version" if self._wanted is None else f"none took version {self._wanted.version}")

    def close(self) -> None:
        """Stop loading."""
        for loader in self._loaders.values():
            loader.cancel()

    def _loaded(self, loader: asyncio.Task[None]) -> None:
        if not loader.cancelled() and (error := loader.exception()) is not None:
            for listener in self.listeners:
                listener.on_failed(error)

    async def _load_newest(self, generator_id: str) -> None:
        """Bring a generator up to the newest version, which may change while it loads."""
        while generator_id in self.handles and self._wanted is not None:
            wanted = self._wanted
            if self.versions.get(generator_id) == wanted.version:
                return
            what = f"generator {generator_id} to take version {wanted.version}"
            call = self.handles[generator_id].load_weights.remote(wanted.manifest, *wanted.chunks)
            try:
                confirmed, span = await wait_for(call, self._load_timeout_s, what)
            except (RayError, WaitTimeoutError) as error:
                self.lose(generator_id, error)
                return
            if confirmed != wanted.version:
                raise WeightSyncError(
                    f"generator {generator_id} confirmed version {confirmed} instead of {wanted.version}"
                )
            self.versions[generator_id] = confirmed
            for listener in self.listeners:
                listener.on_confirmed(generator_id, confirmed, span)
