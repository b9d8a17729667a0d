"""Hand-written stand-ins for Ray: handles that call plain objects in the test's own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from vipray.records import Allocation, Outcome, Span, TensorEntry, TensorPiece, WeightManifest
from vipray.verifiers.protocol import Score


class LocalHandle:
    """Looks like an actor handle; calls of a synchronous class are carried out one after the other, in order."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.calls: list[str] = []
        self._last: asyncio.Future[Any] | None = None

    def __getattr__(self, name: str) -> LocalMethod:
        return LocalMethod(self, name)


class LocalMethod:
    def __init__(self, handle: LocalHandle, name: str, num_returns: int = 1) -> None:
        self._handle, self._name, self._num_returns = handle, name, num_returns

    def options(self, *, num_returns: int) -> LocalMethod:
        return LocalMethod(self._handle, self._name, num_returns)

    def remote(self, *args: Any) -> Any:
        self._handle.calls.append(self._name)
        method = getattr(self._handle.target, self._name)
        is_async = inspect.iscoroutinefunction(method)
        before = None if is_async else self._handle._last
        result = asyncio.ensure_future(_call(method, args, before))
        if not is_async:
            self._handle._last = result
        if self._num_returns == 1:
            return result
        items = [asyncio.ensure_future(_item(result, index)) for index in range(self._num_returns)]
        for item in items:  # as with Ray, an error in a value that nobody asks for is nobody's business
            item.add_done_callback(lambda item: item.cancelled() or item.exception())
        return items


async def _resolve(args: tuple[Any, ...]) -> list[Any]:
    return [await arg if inspect.isawaitable(arg) else arg for arg in args]


async def _call(method: Any, args: tuple[Any, ...], before: asyncio.Future[Any] | None) -> Any:
    if before is not None:
        await asyncio.wait([before])
    result = method(*await _resolve(args))
    if inspect.isgenerator(result):
        return list(result)
    return await result if inspect.isawaitable(result) else result


async def _item(result: asyncio.Future[Any], index: int) -> Any:
    return (await result)[index]


class FakeLearner:
    """Takes any batch that is exactly its allocation's; publishes one byte a version."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[tuple[Allocation, list[dict[str, Any]]]] = []
        self.seconds = seconds
        self.saved: list[tuple[str, int, int]] = []
        self.finished: list[tuple[str, int, int]] = []

    async def train(self, allocation: Allocation, *rollouts: Any) -> tuple[dict[str, float], Span]:
        import time

        start = time.time()
        await asyncio.sleep(self.seconds)
        self.batches.append((allocation, [row for rollout in rollouts for row in rollout.to_pylist()]))
        metrics = {"engine/logprob_difference/mean": 0.0, "groups/without_signal": 0.0}
        return metrics, Span(start, time.time())

    def publish(self, version: int) -> Iterator[Any]:
        entry = TensorEntry("w", "uint8", (1,), (TensorPiece(0, 0, 1),))
        yield np.zeros(1, np.uint8)
        yield WeightManifest(version, (entry,), (1,))

    def save(self, root: str, step: int, keep_last: int) -> None:
        self.saved.append((root, step, keep_last))

    def finish_saving(self) -> None:
        self.finished = list(self.saved)


class EqualityVerifier:
    """A verifier pool without workers, which pays text that is exactly the answer."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.ready: Future[None] = Future()
        self.ready.set_result(None)

    def submit(self, prompt: Any, completion: str) -> Future[Score]:
        future: Future[Score] = Future()
        future.set_result(self._score(prompt, completion))
        return future

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass

    def _score(self, prompt: Any, completion: str) -> Score:
        if completion == "explode":
            return Score.error("the scorer broke")
        right = completion == prompt.answer
        return Score(float(right), Outcome.CORRECT if right else Outcome.WRONG, completion)


class FakeWriter:
    def __init__(self) -> None:
        self.written: list[tuple[str, int, int]] = []

    def write(self, kind: str, step: int, *rollouts: Any) -> int:
        self.written.append((kind, step, len(rollouts)))
        return len(rollouts)
