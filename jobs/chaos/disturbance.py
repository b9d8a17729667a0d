"""Carries out kills while a training runs, and brings back what does not come back by itself: nodes and drivers."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psutil

from jobs.chaos.driver import Driver
from jobs.chaos.local_cluster import LocalCluster, kill
from jobs.chaos.schedule import Moment, Schedule, killable, killable_nodes
from jobs.command import EXIT_FAILED
from vipray.evaluation.chaos_report import Kill

_LOOK_S = 0.1
_NODE_AWAY_S = 1.0  # until a killed node is replaced
_STALL_S = 600.0  # longest time without a step
_TITLE = re.compile(
    r"ray::(Generator|Verifier|Predictor|Allocator|Learner)Actor\b"
)  # Ray's title of an actor's process


class Disturbance:
    """Kills at the moments of a schedule.

    Args:
        cluster: whose processes are killed, and no others.
        driver: the training.
        kinds: what may be killed.
        num_kills: after which the run is left alone.
        num_generators: of the run.
        schedule: draws moments and kinds.
        report: is told of every kill, in a line.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        driver: Driver,
        kinds: Sequence[str],
        num_kills: int,
        num_generators: int,
        schedule: Schedule,
        report: Callable[[str], None],
    ) -> None:
        self.kills: list[Kill] = []
        self._cluster = cluster
        self._driver = driver
        self._kinds = kinds
        self._num_kills = num_kills
        self._num_generators = num_generators
        self._schedule = schedule
        self._report = report
        self._num_nodes = len(cluster.nodes())
        self._node_due_s: float | None = None

    def run(self) -> int:
        """Disturb the training until it ends by itself, or makes no step any more; return its exit status."""
        due_s, stalled_s = self._next(), time.monotonic() + _STALL_S
        while (status := self._driver.status) is None:
            if self._driver.look():
                stalled_s = time.monotonic() + _STALL_S
            if time.monotonic() > stalled_s:
                self._report(f"the training made no step in {_STALL_S:g} s")
                return EXIT_FAILED
            if self._node_due_s is not None and time.monotonic() >= self._node_due_s:
                self._node_due_s = None
                self._cluster.add_node()
            if len(self.kills) < self._num_kills and time.monotonic() >= due_s and self._kill_something():
                due_s = self._next()
            time.sleep(_LOOK_S)
        return status

    def _next(self) -> float:
        return time.monotonic() + self._schedule.wait_s()

    def _kill_something(self) -> bool:
        """Kill one thing that may be killed now; False if there is none."""
        if not self._driver.is_training:
            return False
        actors = actors_among(self._cluster.processes())
        nodes = self._cluster.nodes()
        moment = Moment(
            actors=_count(actors),
            node_actors=[_count(actors_among(node)) for node in nodes],
            is_node_missing=len(nodes) < self._num_nodes,
            is_training=self._driver.is_training,
            has_new_checkpoint=self._driver.has_new_checkpoint,
        )
        kinds = killable(self._kinds, moment, self._num_generators)
        if not kinds:
            return False
        kind = self._schedule.kind(kinds)
        victims: dict[str, int] = {}
        at_s = time.time()
        if kind == "driver":
            self._driver.kill()
            self._driver.start()
        elif kind == "node":
            candidates = killable_nodes(moment)
            index = candidates[self._schedule.index(len(candidates))]
            victims = moment.node_actors[index]
            self._cluster.kill_node(index)
            self._node_due_s = time.monotonic() + _NODE_AWAY_S
        else:
            processes = [process for of, process in actors if of == kind]
            kill([processes[self._schedule.index(len(processes))]])
        self.kills.append(Kill(kind, at_s, victims))
        self._report(f"kill {len(self.kills)} of {self._num_kills}: {kind}")
        return True


def actors_among(processes: Iterable[psutil.Process]) -> list[tuple[str, psutil.Process]]:
    """Kind and process of every actor, in order of process number. Processes that an actor has started do not count."""
    found: dict[int, tuple[str, psutil.Process]] = {}
    parents: dict[int, int] = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            title = " ".join(process.cmdline())
            if named := _TITLE.match(title):
                found[process.pid] = (named[1].lower(), process)
                parents[process.pid] = process.ppid()
    return [found[pid] for pid in sorted(found) if parents[pid] not in found]


def _count(actors: Iterable[tuple[str, psutil.Process]]) -> dict[str, int]:
    return dict(Counter(kind for kind, _ in actors))
