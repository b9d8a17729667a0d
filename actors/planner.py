"""Planning: predictor and allocator behind one door, and what brings a new predictor to the state of a lost one.

    begin(step) ──► predict ──reference──► allocate          observe(step) ──► observe
                        │                                          │
                        └───────── log of calls, in order ─────────┘
                                          │ the predictor is lost
                   last state ──► new predictor ──► the same calls again

The predictor carries out its calls in order, so that each prediction knows exactly what was observed before it. A new
one starts from the last state that was copied and is given all later calls again; an allocation is a function of its
prediction alone. What is planned is therefore the same whatever dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.faults import Fault, fault_of
from actors.seat import Seat
from actors.waiting import wait_for
from vipray.arrays import IntArray
from vipray.errors import WaitTimeoutError
from vipray.records import Allocation, Prediction, Span

_TIMEOUT_S = 300.0  # prediction and allocation take milliseconds; a GPU's first kernels take seconds
_CALLS_BETWEEN_STATES = 64


@dataclass(eq=False)
class _Call:
    """A call of the predictor; a replacement gets it again, under another reference."""

    make: Callable[[Any], Any]
    changes_state: bool
    reference: Any = None
    is_answered: bool = False


@dataclass(eq=False)
class Plan:
    """A step's planning under way; `allocation` is replaced where it has to be asked for again."""

    step: int
    prediction: _Call
    allocation: Any
    result: tuple[Allocation, Prediction] | None = None


class Planner:
    """Makes allocations, one step after the other.

    Args:
        predictor: seat of the predictor; its replacements are restored here.
        allocator: seat of the allocator.
        state: of the predictor before the first call; None: it is new.
    """

    def __init__(self, predictor: Seat, allocator: Seat, state: Mapping[str, Any] | None = None) -> None:
        self._predictor = predictor
        self._allocator = allocator
        predictor.restore = self.restore
        self._state = state
        self._log: list[_Call] = []
        self._forgotten = 0  # calls that were in the log before, and are in the state
        self._copying: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Bring the predictor to its first state.

        Raises:
            RayError: the state is of other prompts or of another kind of predictor.
        """
        if self._state is not None:
            await self._predictor.call(
                lambda predictor: predictor.load_state.remote(self._state), _TIMEOUT_S, "the predictor's state"
            )

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> _Call:
        """Tell the predictor of a step's outcomes; return the call, for `observed`."""
        return self._issue(lambda handle: handle.observe.remote(prompt_ids, successes, trials), changes_state=True)

    def begin(self, step: int, prompt_ids: Sequence[str]) -> Plan:
        """Start planning a step: all that was observed by now counts, and nothing later."""
        prediction = self._issue(lambda handle: handle.predict.remote(prompt_ids), changes_state=False)
        return Plan(step, prediction, self._allocate(step, prediction))

    async def finished(self, plan: Plan) -> tuple[Allocation, Prediction]:
        """Wait for a step's plan, whoever has to be replaced for it."""
        while plan.result is None:
            try:
                allocation = await wait_for(plan.allocation, _TIMEOUT_S, f"the allocation of step {plan.step}")
                prediction = await wait_for(
                    plan.prediction.reference, _TIMEOUT_S, f"the prediction of step {plan.step}"
                )
                plan.result = allocation, prediction
            except (RayError, WaitTimeoutError) as error:
                if fault_of(error) is Fault.RAISED:
                    raise
                await self._recover(plan, error)
        plan.prediction.is_answered = True
        if len(self._log) >= _CALLS_BETWEEN_STATES and (self._copying is None or self._copying.done()):
            self._copying = asyncio.create_task(self.state())
        return plan.result

    async def observed(self, call: _Call) -> Span:
        """When the predictor worked on an observation."""
        while True:
            holder, reference = self._predictor.handle, call.reference
            try:
                span: Span = await wait_for(reference, _TIMEOUT_S, "the predictor's observation")
                return span
            except (RayError, WaitTimeoutError) as error:
                if fault_of(error) is Fault.RAISED:
                    raise
                if reference is call.reference:  # else a new predictor has been asked meanwhile
                    self._predictor.lose(holder, error)
                await self._predictor.holder()

    async def state(self) -> Mapping[str, Any]:
        """The predictor's state after all that was observed by now."""
        while True:
            holder, known = await self._predictor.holder(), self._forgotten + len(self._log)
            try:
                state: Mapping[str, Any] = await wait_for(holder.state.remote(), _TIMEOUT_S, "the predictor's state")
                break
            except (RayError, WaitTimeoutError) as error:
                if fault_of(error) is Fault.RAISED:
                    raise
                self._predictor.lose(holder, error)
        in_state = self._log[: max(0, known - self._forgotten)]
        # Else a prediction may have to be made from before it, or another predictor is about to get what is here.
        is_usable = all(call.changes_state or call.is_answered for call in in_state)
        if is_usable and in_state and self._predictor.is_held and holder is self._predictor.handle:
            self._log = self._log[len(in_state) :]
            self._forgotten, self._state = known, state
        return state

    async def restore(self, handle: Any) -> None:
        """Bring a new predictor to where the lost one was; what is still waited for, it computes again."""
        if self._state is not None:
            await wait_for(handle.load_state.remote(self._state), _TIMEOUT_S, "a new predictor to take its state")
        for call in self._log:
            if call.changes_state or not call.is_answered:
                call.reference = call.make(handle)

    def close(self) -> None:
        """Stop copying."""
        if self._copying is not None:
            self._copying.cancel()

    def _issue(self, make: Callable[[Any], Any], *, changes_state: bool) -> _Call:
        call = _Call(make, changes_state, make(self._predictor.handle))
        self._log.append(call)
        return call

    def _allocate(self, step: int, prediction: _Call) -> Any:
        return self._allocator.handle.allocate.remote(step, prediction.reference)

    async def _recover(self, plan: Plan, error: BaseException) -> None:
        """Find out who failed, see to a replacement, and ask for the allocation again."""
        holder, reference = self._predictor.handle, plan.prediction.reference
        if not await _is_there(reference):
            if reference is plan.prediction.reference:  # else a new predictor has been asked meanwhile
                self._predictor.lose(holder, error)
        elif fault_of(error) is Fault.ACTOR_LOST:
            self._allocator.lose(self._allocator.handle, error)
        await self._predictor.holder()
        await self._allocator.holder()
        plan.allocation = self._allocate(plan.step, plan.prediction)


async def _is_there(reference: Any) -> bool:
    try:
        await wait_for(reference, _TIMEOUT_S, "a prediction")
    except (RayError, WaitTimeoutError):
        return False
    return True
