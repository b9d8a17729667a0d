"""NumPy on a CPU, CuPy on a GPU: one code for both."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from vipray.arrays import FloatArray
from vipray.errors import ConfigError


def array_namespace(backend: str) -> ModuleType:
    """Return the module `numpy` or `cupy`.

    `auto` takes CuPy where it is installed and sees a device, and NumPy otherwise.

    Raises:
        ConfigError: `cupy` was asked for by name and is not installed or sees no device.
    """
    if backend == "numpy":
        return np
    try:
        cupy = importlib.import_module("cupy")
        num_devices = cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        problem = str(error)
    except RuntimeError as error:  # CuPy's runtime errors derive from it: no driver, no device
        problem = str(error)
    else:
        if num_devices:
            return cupy
        problem = "no device found"
    if backend == "auto":
        return np
    raise ConfigError(
        f"predictor.array_backend=cupy: {problem}; install the gpu extra or set predictor.array_backend=numpy"
    )


def to_numpy(array: Any) -> FloatArray:
    """Copy a NumPy or CuPy array to a float64 NumPy array."""
    return np.asarray(array.get() if hasattr(array, "get") else array, dtype=np.float64)
