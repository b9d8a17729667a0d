"""Bytes handed to another process of the same machine without a name in a file system.

An engine's worker is a process of its own and no Ray worker, so it cannot read the object store. A memory file
(`memfd_create`) is reached through `/proc/PID/fd/N`, vanishes with its last user even when a process is killed,
and, unlike a file in `/dev/shm`, does not count against the 64 MB that a container gets there by default.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from vipray.arrays import ByteArray


@contextmanager
def shared_bytes(data: ByteArray) -> Iterator[str]:
    """Yield a path under which other processes of this user can map a copy of `data` while the context lasts."""
    descriptor = os.memfd_create("vipray-weights", os.MFD_CLOEXEC)
    try:
        view = data.data.cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def map_bytes(path: str) -> mmap.mmap:
    """Map the bytes at `path` copy-on-write; they stay valid as long as the mapping, whatever becomes of the path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=mmap.MAP_PRIVATE)
    finally:
        os.close(descriptor)
