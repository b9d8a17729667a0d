"""What a process asks of the Linux kernel about itself: limits, and what becomes of it when its parent ends."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none of them is out of reach."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int | None = None) -> None:
    """End this process by SIGKILL when the thread that made it ends; at once where `parent` is gone already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def forbid_privileges() -> None:
    """Keep this process and those below it from ever gaining privileges, by a set-user-ID program say."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def limit_growth(num_bytes: int) -> None:
    """Let the address space grow by at most `num_bytes` from here; more is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def be_first_to_go() -> None:
    """Ask that a machine out of memory ends this process before others, where that may be asked."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
