"""The 0/1 knapsack, solved exactly by a search around the greedy solution.

    maximise  Σ_{i taken} value_i    subject to  Σ_{i taken} cost_i <= capacity

Items in order of value per unit of cost are taken until one, the break item, does not fit. Its value per cost, λ,
prices the capacity: no solution is worth more than the greedy one plus λ × (capacity left), and flipping item i (in
or out) lowers that bound by |value_i - λ cost_i|, its regret. Items whose regret exceeds the distance from the best
solution found to the bound are settled. The others, the core, are flipped one after the other, by rising regret,
keeping of the partial solutions those that no other beats in both cost and value (the lists of G. Nemhauser and
Z. Ullmann, Management Science 15:494, 1969; the core of D. Pisinger, Operations Research 45:758, 1997).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vipray.arrays import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

_MAX_STATES = 2**21  # over all items of the core: about 20 MB and one second
_TOLERANCE = 1e-12  # of the greedy value: below it, differences are rounding


def fill_knapsack(value: FloatArray, cost: IntArray, capacity: int) -> tuple[BoolArray, float]:
    """Return which of M items to take, and how much more any other choice could be worth at most.

    Args:
        value: [M] > 0.
        cost: [M] > 0, with a sum below 2⁶³.
        capacity: >= 0.

    Returns:
        [M] bool, and the gap: 0.0 if the choice is proven optimal, and never above the value of one item.
    """
    taken = np.zeros(len(value), dtype=np.bool_)
    density = value / cost
    order = np.argsort(-density, kind="stable")
    spent = np.cumsum(cost[order])
    num_greedy = int(np.searchsorted(spent, capacity, side="right"))
    taken[order[:num_greedy]] = True
    if num_greedy == len(value):
        return taken, 0.0
    capacity -= capacity % int(np.gcd.reduce(cost))  # no sum of costs ends in between
    room = capacity - int(cost[taken].sum())
    search = _Search(value, cost, taken, room, float(density[order[num_greedy]]))
    return search.run()


@dataclass
class _Search:
    """Partial solutions as changes of the greedy one: cost and value added, in order of rising cost and value."""

    value: FloatArray
    cost: IntArray
    greedy: BoolArray
    room: int  # capacity that the greedy solution leaves
    price: float  # λ
    added_cost: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    added_value: FloatArray = field(default_factory=lambda: np.zeros(1))
    history: list[tuple[IntArray, BoolArray]] = field(default_factory=list)  # parent and whether it was flipped

    def run(self) -> tuple[BoolArray, float]:
        taken, best = self._fill()
        bound = self.price * self.room
        slack = _TOLERANCE * float(self.value[self.greedy].sum() + bound)
        regret = np.abs(self.value - self.price * self.cost)
        core = np.argsort(regret, kind="stable")
        num_states = 0
        for position, item in enumerate(core):
            if regret[item] >= bound - best - slack:
                break
            if num_states > _MAX_STATES:
                return taken, float(bound - regret[item] - best)
            parent, flipped = self._flip(int(item))
            feasible = int(np.searchsorted(self.added_cost, self.room, side="right")) - 1
            if feasible >= 0 and self.added_value[feasible] > best + slack:
                best = float(self.added_value[feasible])
                taken = self._choice(core[: position + 1], int(parent[feasible]), bool(flipped[feasible]))
            # A state is worth keeping if flipping one more item of the core may still beat the best.
            needed = regret[core[position + 1]] if position + 1 < len(core) else 0.0
            lost = self.price * self.added_cost - self.added_value
            open_ = lost + needed < bound - best - slack
            self.added_cost, self.added_value = self.added_cost[open_], self.added_value[open_]
            self.history.append((parent[open_], flipped[open_]))
            num_states += len(self.added_cost)
        return taken, 0.0

    def _fill(self) -> tuple[BoolArray, float]:
        """Go on taking the densest item that fits, again and again: a first solution, and the value that it adds."""
        taken, room, added = self.greedy.copy(), self.room, 0.0
        fits = np.flatnonzero(~taken & (self.cost <= room))
        fits = fits[np.argsort(-self.value[fits] / self.cost[fits], kind="stable")]
        while fits.size:
            num = int(np.searchsorted(np.cumsum(self.cost[fits]), room, side="right"))
            taken[fits[:num]] = True
            room -= int(self.cost[fits[:num]].sum())
            added += float(self.value[fits[:num]].sum())
            fits = fits[num:][self.cost[fits[num:]] <= room]
        return taken, added

    def _flip(self, item: int) -> tuple[IntArray, BoolArray]:
        """Replace the states by those with and without `item` flipped that no other state dominates."""
        sign = -1 if self.greedy[item] else 1
        num = len(self.added_cost)
        added_cost = np.concatenate([self.added_cost, self.added_cost + sign * self.cost[item]])
        added_value = np.concatenate([self.added_value, self.added_value + sign * self.value[item]])
        order = np.argsort(added_cost, kind="stable")
        best_before = np.concatenate([[-np.inf], np.maximum.accumulate(added_value[order])[:-1]])
        order = order[added_value[order] > best_before]
        last_of_its_cost = np.append(np.diff(added_cost[order]) > 0, True)
        order = order[last_of_its_cost]
        self.added_cost, self.added_value = added_cost[order], added_value[order]
        return order % num, order >= num

    def _choice(self, items: IntArray, state: int, flipped: bool) -> BoolArray:
        """The items of a state, from its parent `state` and whether the last of `items` is flipped in it."""
        taken = self.greedy.copy()
        for position in range(len(items) - 1, -1, -1):
            taken[items[position]] ^= flipped
            if position:
                parents, flips = self.history[position - 1]
                state, flipped = int(parents[state]), bool(flips[state])
        return taken
