"""Sets of time: sorted intervals that do not overlap, and how much of them lies where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from vipray.arrays import FloatArray


class Intervals:
    """The union of some intervals.

    Args:
        pairs: starts and ends, in any order; those that are empty count for nothing.
    """

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        merged: list[list[float]] = []
        for start, end in sorted(pair for pair in pairs if pair[1] > pair[0]):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        edges = np.array(merged, dtype=np.float64).reshape(-1, 2)
        self.starts, self.ends = edges[:, 0], edges[:, 1]
        self._before = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])  # length up to each start

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def __and__(self, other: Intervals) -> Intervals:
        """What lies in both."""
        pairs, i, j = [], 0, 0
        while i < len(self.starts) and j < len(other.starts):
            end = min(self.ends[i], other.ends[j])
            pairs.append((float(max(self.starts[i], other.starts[j])), float(end)))
            if self.ends[i] == end:
                i += 1
            else:
                j += 1
        return Intervals(pairs)

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> FloatArray:
        """Length of what lies between `starts` and `ends`, each of any one shape."""
        return self._length_until(np.asarray(ends, dtype=np.float64)) - self._length_until(
            np.asarray(starts, dtype=np.float64)
        )

    def _length_until(self, time: FloatArray) -> FloatArray:
        if not len(self.starts):
            return np.zeros_like(time)
        row = np.searchsorted(self.starts, time, side="right") - 1
        inside = np.minimum(time, self.ends[row]) - self.starts[row]
        return np.where(row < 0, 0.0, self._before[row] + inside)
