"""Hand-written stand-ins for Ray: handles that call plain objects in the test's own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from vipray.records import (
    ROLLOUT_SCHEMA,
    Allocation,
    Outcome,
    RolloutId,
    Span,
    TensorEntry,
    TensorPiece,
    WeightManifest,
)
from vipray.run_log import write_table
from vipray.verifiers.protocol import Score


class LocalHandle:
    """Looks like an actor handle; calls of a synchronous class are carried out one after the other, in order."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.calls: list[str] = []
        self._last: asyncio.Future[Any] | None = None

    def __getattr__(self, name: str) -> LocalMethod:
        return LocalMethod(self, name)


class MortalHandle(LocalHandle):
    """Dies at the n-th call of a method, before or after it is carried out, and answers nothing from then on."""

    def __init__(self, target: Any, method: str, at: int, *, before: bool = True) -> None:
        super().__init__(target)
        self.left, self.method, self.before = at, method, before
        self.is_dead = False

    def __getattr__(self, name: str) -> LocalMethod:
        return MortalMethod(self, name)


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


class MortalMethod(LocalMethod):
    _handle: MortalHandle

    def options(self, *, num_returns: int) -> LocalMethod:
        return MortalMethod(self._handle, self._name, num_returns)

    def remote(self, *args: Any) -> Any:
        handle = self._handle
        if self._name == handle.method:
            handle.left -= 1
            handle.is_dead = handle.is_dead or handle.left < 0
        if handle.is_dead and not handle.before and handle.left == -1:  # once more, and nobody hears of it
            handle.left -= 1
            super().remote(*args)
        if not handle.is_dead:
            return super().remote(*args)
        dead = [asyncio.ensure_future(_died()) for _ in range(self._num_returns)]
        for item in dead:
            item.add_done_callback(lambda item: item.cancelled() or item.exception())
        return dead[0] if self._num_returns == 1 else dead


async def _died() -> None:
    raise ActorDiedError


async def _resolve(args: tuple[Any, ...]) -> list[Any]:
    try:
        return [await arg if inspect.isawaitable(arg) else arg for arg in args]
    except RayError as error:  # as Ray tells a call that what it was given is lost
        raise RayTaskError("call", "Traceback", error) from error


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
        self.loaded: list[str] = []

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

    def save(self, root: str, step: int, keep_last: int, run: Mapping[str, Any]) -> str | None:
        self.saved.append((root, step, keep_last))
        return None

    def finish_saving(self) -> str | None:
        self.finished = list(self.saved)
        return None

    def load(self, folder: str) -> int:
        self.loaded.append(folder)
        return int(folder.rpartition("-")[2])

    async def health(self) -> None:
        pass


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
        self.rows: dict[tuple[str, int], list[Any]] = {}

    def write(self, kind: str, step: int, *rollouts: Any) -> int:
        self.written.append((kind, step, len(rollouts)))
        self.rows[kind, step] = list(rollouts)
        return len(rollouts)

    def write_file(self, path: str, *rollouts: Any) -> int:
        write_table(pa.Table.from_batches(list(rollouts), schema=ROLLOUT_SCHEMA), Path(path))
        return len(rollouts)

    def read(self, step: int, rollout_ids: Sequence[RolloutId]) -> pa.RecordBatch:
        rows = {(row["prompt_id"], row["k"]): row for batch in self.rows["rollouts", step] for row in batch.to_pylist()}
        return pa.RecordBatch.from_pylist([rows[r.prompt_id, r.k] for r in rollout_ids], schema=ROLLOUT_SCHEMA)

    def ready(self) -> None:
        pass

    async def health(self) -> None:
        pass
