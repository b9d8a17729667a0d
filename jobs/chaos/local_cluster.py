"""A Ray cluster of several nodes on this machine, each in processes of its own, so that a node can be killed.

The head has no CPUs: actors that ask for some live on the other nodes, and the driver on the head.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from vipray.errors import ActorStartError

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_LOOK_S = 0.2
_STARTED = "runtime started"  # what `ray start` says once the node has joined
_FAST_HEALTH_CHECKS = {  # Ray's own are made for networks: they take 15 s to give a node up
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # a token would have to reach every process of a private cluster
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class _Node:
    starter: subprocess.Popen[bytes]
    log: Path

    def tree(self) -> list[psutil.Process]:
        """The node's processes, the actors' included; the starter is the first."""
        with suppress(psutil.NoSuchProcess):
            starter = psutil.Process(self.starter.pid)
            return [starter, *starter.children(recursive=True)]
        return []


class LocalCluster:
    """A head and `num_nodes` nodes with `cpus_per_node` CPUs; ended by process trees when the context is left.

    Args:
        num_nodes: beside the head.
        cpus_per_node: that the nodes offer.
        object_store_mib: of every node.

    Raises:
        ActorStartError: a node did not come up; the message says what it wrote.
    """

    def __init__(self, num_nodes: int, cpus_per_node: int, object_store_mib: int) -> None:
        self._num_nodes = num_nodes
        self._cpus_per_node = cpus_per_node
        self._object_store_mib = object_store_mib
        self._temp_dir = Path(tempfile.mkdtemp(prefix="vc"))  # short: Unix sockets below it have at most 107 characters
        self._num_started = 0
        self._head: _Node | None = None
        self._nodes: list[_Node] = []
        self.address = f"127.0.0.1:{_free_port()}"

    def __enter__(self) -> LocalCluster:
        try:
            head_options = [
                "--head",
                f"--port={self.address.rpartition(':')[2]}",
                "--num-cpus=0",
                "--include-dashboard=false",
                f"--ray-client-server-port={_free_port()}",
                f"--temp-dir={self._temp_dir}",
                f"--system-config={json.dumps(_FAST_HEALTH_CHECKS)}",
            ]
            self._head = self._start(head_options)
            self._await(self._head)
            for _ in range(self._num_nodes):
                self.add_node()
                self._await(self._nodes[-1])  # nodes that start at the same time choose the same sockets
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a driver that is to join the cluster."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return os.environ | _ENVIRONMENT | {"RAY_ADDRESS": self.address, "PATH": path}

    def add_node(self) -> None:
        """Start a node, and do not wait for it."""
        options = [f"--address={self.address}", f"--num-cpus={self._cpus_per_node}"]
        self._nodes.append(self._start(options))

    def processes(self) -> list[psutil.Process]:
        """Every process of the cluster, the head's included."""
        nodes = [*self._nodes, *([] if self._head is None else [self._head])]
        return [process for node in nodes for process in node.tree()]

    def nodes(self) -> list[list[psutil.Process]]:
        """The process trees of the nodes that are up, the head's not among them."""
        return [node.tree() for node in self._nodes if self._is_up(node)]

    def kill_node(self, index: int) -> None:
        """Kill node `index` of `nodes()`: raylet, actors and all, without a word to anybody."""
        node = [node for node in self._nodes if self._is_up(node)][index]
        self._nodes.remove(node)
        kill(node.tree()[1:])
        with suppress(subprocess.TimeoutExpired):  # it reaps its children, and ends when it finds them dead
            node.starter.wait(_END_TIMEOUT_S)
        kill(node.tree())
        node.starter.wait(_END_TIMEOUT_S)

    def _start(self, options: list[str]) -> _Node:
        log = self._temp_dir / f"node-{self._num_started}.log"
        self._num_started += 1
        shared = [
            "--block",
            "--disable-usage-stats",
            f"--object-store-memory={self._object_store_mib << 20}",
            "--min-worker-port=0",  # nodes of one machine must not want the same ports
            "--max-worker-port=0",
        ]
        with log.open("wb") as file:
            starter = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *shared],
                env={name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Node(starter, log)

    def _is_up(self, node: _Node) -> bool:
        return node.starter.poll() is None and _STARTED in node.log.read_text(errors="replace")

    def _await(self, node: _Node) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_up(node):
            said = " ".join(node.log.read_text(errors="replace").split()[-60:])
            if node.starter.poll() is not None:
                raise ActorStartError(f"a Ray node ended with status {node.starter.returncode}: {said}")
            if time.monotonic() > deadline:
                raise ActorStartError(f"a Ray node did not start within {_START_TIMEOUT_S:g} s: {said}")
            time.sleep(_LOOK_S)

    def _end(self) -> None:
        kill(self.processes())
        for node in [*self._nodes, *([] if self._head is None else [self._head])]:
            node.starter.wait(_END_TIMEOUT_S)
        shutil.rmtree(self._temp_dir, ignore_errors=True)


def kill(processes: list[psutil.Process]) -> None:
    """Send SIGKILL to processes that may be gone by now; psutil refuses where a number was given to another one."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
