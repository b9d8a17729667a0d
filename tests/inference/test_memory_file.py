from __future__ import annotations

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

from vipray.inference.memory_file import map_bytes, shared_bytes


def test_another_process_reads_the_bytes():
    data = np.arange(5_000_000, dtype=np.uint32).view(np.uint8)
    data.flags.writeable = False  # as it comes from an object store
    code = (
        "import sys, zlib; from vipray.inference.memory_file import map_bytes\n"
        "print(zlib.crc32(map_bytes(sys.argv[1])))"
    )
    with shared_bytes(data) as path:
        result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(result.stdout) == zlib.crc32(data.tobytes())


def test_a_mapping_outlives_the_file_and_the_file_is_gone_after_use():
    with shared_bytes(np.arange(10, dtype=np.uint8)) as path:
        mapping = map_bytes(path)
        assert os.path.exists(path)
    assert not os.path.exists(path)
    assert bytes(mapping) == bytes(range(10))


def test_the_file_is_closed_when_the_reader_fails():
    with pytest.raises(RuntimeError), shared_bytes(np.zeros(3, np.uint8)) as path:
        raise RuntimeError
    assert not os.path.exists(path)
