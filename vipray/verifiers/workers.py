"""The verifier pool: answers are scored in child processes, so that one that hangs or crashes costs one worker.

    submit ──► queue ──► a thread for each worker ──► worker process
                 ▲             │ deadline passed, or the process ended
                 └─────────────┴── the answer at fault gets `timeout` or `error`; the rest of its batch is queued again;
                                   the worker is ended with everything below it, and replaced

No signal is used in the caller's process, so a pool works in any thread, event loop or actor. The clock of an answer
runs while a worker has it in hand, not while it waits.

Why not a library: executors of the standard library and of loky cannot end a task; pebble ends the task's process
alone, not what that has started, times chunks and not the answers in them, and unpickles what a worker sends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from vipray.data.prompts import Prompt
from vipray.errors import ConfigError, VerifierPoolError
from vipray.records import Outcome
from vipray.verifiers.protocol import Score, Verifier
from vipray.verifiers.worker import DeadlineError, Worker, WorkerEndedError, WorkerSpec

_log = logging.getLogger(__name__)
_BATCH = 16  # answers that a worker is sent at once: a message costs less than the wait for the next one
_LOOK_AHEAD = 16 * _BATCH  # answers of a worker's share that `scores` keeps waiting
_START_S = 120.0  # for a worker to import what its verifiers need, on a busy machine
_START_TRIES = 3
_START_PAUSE_S = 1.0  # where the machine had no room for a process


@dataclass(frozen=True)
class _Job:
    prompt: Prompt
    completion: str
    score: Future[Score] = field(default_factory=Future)


class VerifierPool:
    """Scores answers in worker processes. Use it as a context manager, or `close` it.

    Args:
        build: picklable; makes a verifier from its name, in a worker.
        names: the verifiers that workers build when they start; others are built at their first use.
        num_workers: processes that score at the same time.
        answer_timeout_s: longest time that one answer may take a worker.
        memory_mib: how far a worker may grow beyond its size at the start; so may each process that it starts.
    """

    def __init__(
        self,
        build: Callable[[str], Verifier],
        names: Sequence[str],
        *,
        num_workers: int,
        answer_timeout_s: float,
        memory_mib: int,
    ) -> None:
        self.ready: Future[None] = Future()  # done when a worker is up, or cannot be started
        self._spec = WorkerSpec(build, tuple(names), memory_mib << 20)
        self._answer_timeout_s = answer_timeout_s
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._workers: dict[int, Worker] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._num_replaced = 0
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"verifier-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, prompt: Prompt, completion: str) -> Future[Score]:
        """Score one completion; the future holds a score whatever the completion does to a worker.

        The future raises `ConfigError` where a verifier cannot be built, and `VerifierPoolError` where no worker can
        be started or the pool is closed.
        """
        job = _Job(prompt, completion)
        with self._changed:
            if self._failure is None:
                self._jobs.append(job)
                self._changed.notify()
            else:
                job.score.set_exception(self._failure)
        return job.score

    def scores(self, answers: Iterable[tuple[Prompt, str]]) -> Iterator[Score]:
        """Score prompts and completions in order; only so many are read ahead as keep the workers busy."""
        rest = iter(answers)
        ahead = _LOOK_AHEAD * len(self._threads)
        waiting = deque(self.submit(*answer) for answer in islice(rest, ahead))
        while waiting:
            score = waiting.popleft().result()
            waiting.extend(self.submit(*answer) for answer in islice(rest, 1))
            yield score

    def worker_pids(self) -> list[int]:
        """Process groups of the workers that are ready now."""
        with self._changed:
            return [worker.pid for worker in self._workers.values() if worker.is_ready]

    def metrics(self) -> dict[str, float]:
        """Scores by outcome so far, and how many workers had to be replaced."""
        with self._changed:
            counts = {f"verifiers/{outcome}": float(self._outcomes[outcome]) for outcome in Outcome}
            return counts | {"verifiers/workers_replaced": float(self._num_replaced)}

    def close(self) -> None:
        """End all workers; what is not scored by then raises `VerifierPoolError`."""
        self._fail(VerifierPoolError("the verifier pool is closed"))
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, index: int) -> None:
        """Serve the queue with one worker after the other, until the pool is closed or has failed."""
        try:
            while self._failure is None:
                worker = self._start(index)
                try:
                    while (batch := self._take(worker)) and self._score(worker, batch):
                        pass
                finally:
                    self._discard(index, worker)
        except (ConfigError, VerifierPoolError) as error:
            self._fail(error)
        except BaseException as error:
            self._fail(VerifierPoolError(f"a thread of the verifier pool failed: {type(error).__name__}: {error}"))
            raise

    def _start(self, index: int) -> Worker:
        """Return a worker that is ready."""
        problem = ""
        for _ in range(_START_TRIES):
            self._raise_failure()
            try:
                worker = Worker(self._spec)
            except (OSError, WorkerEndedError) as error:
                problem = str(error)
                time.sleep(_START_PAUSE_S)
                continue
            with self._changed:
                self._workers[index] = worker
                if self._failure is not None:
                    worker.hang_up()
            try:
                worker.wait_until_ready(_START_S)
                with suppress(InvalidStateError):
                    self.ready.set_result(None)
                return worker
            except DeadlineError:
                problem = f"it was not ready within {_START_S:g} s"
            except WorkerEndedError as error:
                problem = str(error)
            except ConfigError:
                self._discard(index, worker)
                raise
            self._discard(index, worker)
        raise VerifierPoolError(f"a worker of the verifier pool does not start: {problem}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _discard(self, index: int, worker: Worker) -> None:
        with self._changed:
            del self._workers[index]
            self._num_replaced += self._failure is None
        worker.end()

    def _take(self, worker: Worker) -> deque[_Job]:
        """Wait for jobs and return a share of them; none where the worker or the pool is of no more use."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._failure is not None)
            if worker.has_ended():  # while it had nothing to do: no answer is at fault
                return deque()
            share = min(_BATCH, -(-len(self._jobs) // len(self._threads)))
            return deque(self._jobs.popleft() for _ in range(share))

    def _score(self, worker: Worker, batch: deque[_Job]) -> bool:
        """Score a batch as far as the worker goes, queue the rest again; return whether it can take another."""
        try:
            worker.send([(job.prompt, job.completion) for job in batch])
            while batch and not worker.has_retired:
                score = worker.score(self._answer_timeout_s)
                self._settle(batch.popleft(), score, is_fault=score.outcome is Outcome.ERROR)
            return not worker.has_retired
        except DeadlineError:
            reason = f"no verdict within {self._answer_timeout_s:g} s"
            self._settle(batch.popleft(), Score(0.0, Outcome.TIMEOUT, "", reason), is_fault=True)
        except WorkerEndedError as error:
            if self._failure is None:  # else it was ended with the pool
                self._settle(batch.popleft(), Score.error(f"the verifier crashed: {error}"), is_fault=True)
        finally:
            self._put_back(batch)
        return False

    def _put_back(self, batch: deque[_Job]) -> None:
        with self._changed:
            failure = self._failure
            if failure is None:
                self._jobs.extendleft(reversed(batch))
                self._changed.notify(len(batch))
        if failure is not None:
            _refuse(batch, failure)

    def _settle(self, job: _Job, score: Score, *, is_fault: bool) -> None:
        with self._changed:
            self._outcomes[score.outcome] += 1
        if is_fault:
            _log.warning("verifier %s, prompt %s: %s", job.prompt.verifier, job.prompt.prompt_id, score.reason)
        with suppress(InvalidStateError):  # cancelled by the caller
            job.score.set_result(score)

    def _fail(self, error: Exception) -> None:
        """Take no more jobs, refuse those that wait, and end all workers. Only the first failure counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            jobs, workers = list(self._jobs), list(self._workers.values())
            self._jobs.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.hang_up()
        with suppress(InvalidStateError):
            self.ready.set_exception(error)
        _refuse(jobs, error)


def _refuse(jobs: Iterable[_Job], error: Exception) -> None:
    for job in jobs:
        with suppress(InvalidStateError):
            job.score.set_exception(error)
