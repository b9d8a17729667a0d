"""A stand-in for CuPy: arrays of its own kind that never turn into NumPy's by themselves, as on a GPU."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


class DeviceArray:
    """Wraps a NumPy array; mixing it with one, or handing it to a NumPy function, is an error."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, *_args: Any, **_kwargs: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed: use get()")

    def get(self) -> np.ndarray:
        return self._values.copy()

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self._values[_unwrap(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[_unwrap(key)] = _unwrap(value)

    def sum(self, axis: int) -> DeviceArray:
        return DeviceArray(self._values.sum(axis=axis))

    def all(self) -> DeviceArray:
        return DeviceArray(self._values.all())

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self._values.T)


def _operator(name: str, swapped: bool) -> Any:
    function = getattr(operator, name)

    def apply(self: DeviceArray, other: Any) -> DeviceArray:
        left, right = (other, self) if swapped else (self, other)
        return DeviceArray(function(_unwrap(left), _unwrap(right)))

    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(DeviceArray, f"__{_name}__", _operator(_name, swapped=False))
    setattr(DeviceArray, f"__r{_name}__", _operator(_name, swapped=True))


def _unwrap(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_unwrap(part) for part in value)
    if isinstance(value, np.ndarray):
        raise TypeError("a NumPy array where a device array belongs")
    return value._values if isinstance(value, DeviceArray) else value


class _Namespace:
    """Functions of NumPy's that take and return device arrays only."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if isinstance(function, type) or not callable(function):
            return function  # dtypes and constants

        def call(*args: Any, **kwargs: Any) -> DeviceArray:
            return DeviceArray(function(*(_unwrap(arg) for arg in args), **kwargs))

        return call


class DeviceNamespace(_Namespace):
    """The module: `asarray` is the one way from the host to the device."""

    def __init__(self) -> None:
        super().__init__(np)
        self.linalg = _Namespace(np.linalg)

    def asarray(self, values: Any, dtype: Any = None) -> DeviceArray:
        return DeviceArray(np.array(values._values if isinstance(values, DeviceArray) else values, dtype=dtype))
