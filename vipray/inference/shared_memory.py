"""Named shared memory of other processes, made nameless: it stays theirs, and vanishes with the last of them.

vLLM's processes talk through segments below /dev/shm and remove them in an orderly end. After a SIGKILL nobody does,
and on a machine with little shared memory a few dead engines are enough for the next one not to start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_SEGMENT = re.compile(r" (/dev/shm/psm_\w+)$")  # Python's name for them; one without a name has ` (deleted)` after it


def forget_names(processes: Iterable[psutil.Process]) -> list[str]:
    """Remove the names of all segments that processes have mapped; return them.

    To be called once everybody who opens a segment by its name has done so.
    """
    names: set[str] = set()
    for process in processes:
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            names |= {match[1] for line in lines if (match := _SEGMENT.search(line))}
    for name in names:
        Path(name).unlink(missing_ok=True)
    return sorted(names)
