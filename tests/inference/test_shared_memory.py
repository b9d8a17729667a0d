"""Shared memory without a name: still there for those who have it, and gone with them."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

import psutil

from vipray.inference.shared_memory import forget_names

READER = """
import sys
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(name=sys.argv[1])
resource_tracker.unregister(memory._name, "shared_memory")
print("open", flush=True)
sys.stdin.readline()
print(bytes(memory.buf[:5]).decode(), flush=True)
"""


def test_a_segment_loses_its_name_and_stays_with_those_who_have_it():
    memory = shared_memory.SharedMemory(create=True, size=4096)
    command = [sys.executable, "-c", READER, memory.name]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdin is not None and reader.stdout is not None
    try:
        assert reader.stdout.readline() == "open\n"
        path = Path("/dev/shm") / memory.name
        assert path.exists()
        assert forget_names([psutil.Process(reader.pid)]) == [str(path)]
        assert not path.exists()
        assert forget_names([psutil.Process(reader.pid)]) == []
        assert memory.buf is not None
        memory.buf[:5] = b"hello"
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "hello\n"
    finally:
        reader.kill()
        reader.wait()
        memory.close()
        shared_memory.resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
    assert forget_names([psutil.Process()]) == []
