"""Gives rollouts to generators: oldest step first, longest first, to whoever has least to do.

Nothing is given away before a generator has room for it, so that what has not started can still go anywhere: to a
generator that joins, or that turned out to be faster, or away from one that leaves. A state machine without a clock:

    add_step ──► pending ──assign──► in flight ──release──► in verification ──complete──► counted
                    ▲                    │                        │
                    └────── leave ───────┴──── reissue, too old ──┘

After each call that changes anything, `assign` says what starts where. Longest first on the least loaded generator is
the rule of Graham (1969, SIAM J. Appl. Math. 17) for a short makespan. The longest is never passed over for a shorter
one that would fit: it would otherwise be started last. Nobody takes more than an even share of what is to be made, so
that the first generator with new weights leaves something for those that are still loading them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vipray.dispatch.generator_load import GeneratorLoads
from vipray.dispatch.ledger import Ledger
from vipray.dispatch.pending import PendingRollouts
from vipray.dispatch.staleness import StalenessAction, StalenessDecision, StalenessPolicy
from vipray.records import RolloutId

_TOGETHER = 4  # rollouts of a prompt that start together where there is room: one prefill, and still a mix of lengths


class Dispatcher:
    """Who makes which rollout, over several steps at once.

    Args:
        staleness: which step may be started on which version, and what may enter a batch.
        max_rollouts: in flight at one generator at most, >= 1.
        max_tokens: expected tokens in flight at one generator at most, unless a single rollout has more.
    """

    def __init__(self, staleness: StalenessPolicy, *, max_rollouts: int, max_tokens: float) -> None:
        self._staleness = staleness
        self._loads = GeneratorLoads(max_rollouts, max_tokens)
        self._gone: set[str] = set()
        self._steps: dict[int, _Step] = {}  # in order of step
        self._closed: set[int] = set()

    # Generators

    def join(self, generator_id: str, version: int | None = None) -> None:
        """Add a generator, at the version that it has confirmed.

        Raises:
            ValueError: the id is in use, or was: late results of its predecessor would be taken for its own.
        """
        if not generator_id or generator_id in self._loads or generator_id in self._gone:
            raise ValueError(f"generator {generator_id!r} needs an id of its own, which nobody has or had")
        self._loads.join(generator_id, version)

    def confirm(self, generator_id: str, version: int) -> None:
        """Note that a generator's engine has confirmed a version; does nothing when the generator has left."""
        if generator_id in self._loads:
            self._loads.confirm(generator_id, version)

    def leave(self, generator_id: str) -> list[RolloutId]:
        """Remove a generator and make what it has not finished pending again; does nothing when it has left."""
        if generator_id not in self._loads:
            return []
        self._gone.add(generator_id)
        self._loads.leave(generator_id)
        lost = []
        for step in self._steps.values():
            lost += step.give_up(generator_id)
        return lost

    # Rollouts

    def add_step(self, step: int, rollout_ids: Sequence[RolloutId], expected_tokens: Mapping[str, float]) -> None:
        """Add the rollouts of a step.

        Args:
            step: later than every step before.
            rollout_ids: distinct, of this step.
            expected_tokens: > 0, by prompt id.

        Raises:
            ValueError: a step that comes too late or twice, or a rollout that comes twice or is of another step.
        """
        latest = max([*self._steps, *self._closed], default=step - 1)
        if step <= latest or any(rollout_id.step != step for rollout_id in rollout_ids):
            raise ValueError(f"rollouts of step {step} were added after step {latest}, or are of another step")
        self._steps[step] = _Step(rollout_ids, expected_tokens)

    def assign(self) -> dict[str, list[RolloutId]]:
        """Start whatever there is room for; return what each generator has to start now."""
        started: dict[str, list[RolloutId]] = {}
        for number, step in self._steps.items():
            for is_retry in (True, False):
                if step.pending[is_retry] and not self._assign(number, step, is_retry, started):
                    return started
        return started

    def release(self, rollout_id: RolloutId, generator_id: str) -> None:
        """Note that a generator has made a rollout, which now is in verification; the generator has room for more."""
        self._loads.end(generator_id, rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is not None:
            step.ledger.hand_over(rollout_id, generator_id)

    def complete(self, rollout_id: RolloutId, generator_id: str, policy_version_first: int) -> StalenessDecision:
        """Take a verified rollout in, whoever was asked for it and however late it is.

        Args:
            rollout_id: the rollout.
            generator_id: who made it.
            policy_version_first: version that sampled its first token.

        Returns:
            ADMIT: it counts. REISSUE: too old, it is made again. DROP: it was counted before or its batch is closed.

        Raises:
            ValueError: the rollout is of no step that was added.
        """
        self._loads.end(generator_id, rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is None:
            self._require_closed(rollout_id)
            return StalenessDecision(StalenessAction.DROP, f"the batch of step {rollout_id.step} is closed")
        decision = self._staleness.at_entry(rollout_id.step, policy_version_first)
        if decision.action is StalenessAction.REISSUE and step.ledger.is_due(rollout_id):
            step.reissue(rollout_id, generator_id, is_retry=True)
            return decision
        if not step.ledger.complete(rollout_id):
            return StalenessDecision(StalenessAction.DROP, f"{rollout_id} was counted before")
        step.discard(rollout_id)
        return decision

    def reissue(self, rollout_id: RolloutId, generator_id: str) -> None:
        """Make a rollout pending again whose result was lost on the way; does nothing when another makes it already."""
        self._loads.end(generator_id, rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is not None:
            step.reissue(rollout_id, generator_id, is_retry=False)

    # Batches

    def is_complete(self, step: int) -> bool:
        """Whether every rollout of an open step is counted."""
        return self._steps[step].ledger.is_complete

    def unfinished(self, step: int) -> list[RolloutId]:
        """Rollouts of an open step that are not counted yet."""
        return self._steps[step].ledger.unfinished

    def close_step(self, step: int) -> list[RolloutId]:
        """Close a batch with what has arrived; return what it does without. Results that come later are dropped."""
        self._closed.add(step)
        return self._steps.pop(step).ledger.drop_unfinished()

    def superfluous(self) -> dict[str, list[RolloutId]]:
        """What generators are making although nobody waits for it, so that it can be aborted."""
        found = {
            generator_id: [rollout_id for rollout_id in making if not self._is_due(rollout_id)]
            for generator_id, making in self._loads.making().items()
        }
        return {generator_id: rollout_ids for generator_id, rollout_ids in found.items() if rollout_ids}

    def has_pending(self) -> bool:
        """Whether any rollout waits for a generator."""
        return any(queue for step in self._steps.values() for queue in step.pending.values())

    def metrics(self, step: int) -> dict[str, float]:
        """Rollouts of an open step that were issued again (too old among them), came twice, or were dropped."""
        return {**self._steps[step].ledger.metrics(), "too_old": float(self._steps[step].num_too_old)}

    def _assign(self, number: int, step: _Step, is_retry: bool, started: dict[str, list[RolloutId]]) -> bool:
        """Start rollouts of one queue. Returns False where the longest of it waits for room, and all behind it."""
        pending = step.pending[is_retry]
        versions = [
            version
            for version in self._loads.versions()
            if self._staleness.may_start(number, version, is_retry=is_retry).action is StalenessAction.START
        ]
        while pending:
            generator_id = self._loads.least_loaded(versions)
            if generator_id is None:
                return True  # whoever may make it is full, or not at a version for it yet
            if self._loads.tokens(generator_id) and self._fair_share(generator_id, number) <= 0:
                return False  # the others, who are at no version for it yet, shall find something to do
            prompt_id = pending.next_prompt(generator_id)
            tokens = pending.tokens_of(prompt_id)
            room = self._loads.room(generator_id, tokens)
            if not room:
                return False
            together = max(1, min(_TOGETHER, int(self._fair_share(generator_id, number) / tokens)))
            taken = pending.take(prompt_id, min(room, together), generator_id)
            step.issue(taken, generator_id)
            self._loads.start(generator_id, taken, tokens)
            started.setdefault(generator_id, []).extend(taken)
        return True

    def _fair_share(self, generator_id: str, number: int) -> float:
        """Expected tokens that a generator lacks to an even share of what is to be made up to step `number`."""
        unfinished = sum(step.unfinished_tokens for at, step in self._steps.items() if at <= number)
        return unfinished / len(self._loads) - self._loads.tokens(generator_id)

    def _is_due(self, rollout_id: RolloutId) -> bool:
        step = self._steps.get(rollout_id.step)
        return step is not None and step.ledger.is_due(rollout_id)

    def _require_closed(self, rollout_id: RolloutId) -> None:
        if rollout_id.step not in self._closed:
            raise ValueError(f"{rollout_id} is of no step that was added")


class _Step:
    """Ledger and queues of one step; `pending[True]` holds what was too old once."""

    def __init__(self, rollout_ids: Sequence[RolloutId], expected_tokens: Mapping[str, float]) -> None:
        self.ledger = Ledger(rollout_ids)
        self.pending = {False: PendingRollouts(), True: PendingRollouts()}
        self.num_too_old = 0
        self.unfinished_tokens = 0.0
        self._expected_tokens = expected_tokens
        for rollout_id in rollout_ids:
            self._add(rollout_id, is_retry=False)
            self.unfinished_tokens += expected_tokens[rollout_id.prompt_id]

    def issue(self, rollout_ids: Sequence[RolloutId], generator_id: str) -> None:
        for rollout_id in rollout_ids:
            self.ledger.issue(rollout_id, generator_id)

    def give_up(self, generator_id: str) -> list[RolloutId]:
        for queue in self.pending.values():
            queue.forget(generator_id)
        lost = self.ledger.give_up(generator_id)
        for rollout_id in lost:
            self._add(rollout_id, is_retry=False)
        return lost

    def reissue(self, rollout_id: RolloutId, generator_id: str, *, is_retry: bool) -> None:
        self.num_too_old += is_retry
        if self.ledger.reissue(rollout_id, generator_id):
            self._add(rollout_id, is_retry=is_retry)

    def discard(self, rollout_id: RolloutId) -> None:
        """Take a counted rollout out of the queues, where it is if its generator was given up before."""
        self.unfinished_tokens -= self._expected_tokens[rollout_id.prompt_id]
        for queue in self.pending.values():
            queue.discard(rollout_id)

    def _add(self, rollout_id: RolloutId, *, is_retry: bool) -> None:
        self.pending[is_retry].add(rollout_id, self._expected_tokens[rollout_id.prompt_id])
