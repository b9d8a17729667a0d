"""Measuring: medians of repeats, on a given number of cores, in a process that does nothing else.

A measurement is a plain function of a module whose arguments and result fit into JSON. It runs in a child process that
may use the first `cores` of this process's cores only (CPU affinity, where the system has it) and as many threads in
each linear-algebra library, so that neither threads nor memory of the caller count.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
HOW_LIMITED = "by CPU affinity and OMP_/OPENBLAS_/MKL_NUM_THREADS, in a process of its own"


def median_time_s(call: Callable[[], object], repeats: int, *, warm_ups: int = 1) -> float:
    """Median seconds of `repeats` calls, after some that do not count."""
    for _ in range(warm_ups):
        call()
    return median(time_s(call) for _ in range(repeats))


def time_s(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_memory_bytes() -> int:
    """Largest resident memory that this process has had."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts at the parent's size there
        kib = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(kib) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_child(function: Callable[..., Any], *, cores: int, timeout_s: float | None = None, **arguments: Any) -> Any:
    """Return `function(**arguments)` as measured in a child process on `cores` cores; None after `timeout_s`.

    Raises:
        RuntimeError: the child failed; with what it said last.
    """
    task = {"module": function.__module__, "name": function.__name__, "cores": cores, "arguments": arguments}
    environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(cores))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "jobs.bench.child"],
            input=json.dumps(task),
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or ["no message; out of memory?"]
        raise RuntimeError(f"{function.__name__}({arguments}) failed with status {child.returncode}: {last[0]}")
    return json.loads(child.stdout.splitlines()[-1])  # libraries may have printed before


def carry_out(task: dict[str, Any]) -> Any:
    """Do in the child what `in_child` asked for. Cores are limited before the numeric libraries are imported."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task["cores"]])
    function = getattr(importlib.import_module(task["module"]), task["name"])
    return function(**task["arguments"])
