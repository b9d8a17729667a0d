"""Gives rollouts to generators: oldest step first, longest first, to whoever has least to do.

Nothing is given away before a generator has room for it, so that what has not started can still go anywhere: to a
generator that joins, or that turned out to be faster, or away from one that leaves. A state machine without a clock:

    add_step ──► pending ──assign──► in flight ──release──► in verification ──complete──► counted
                    ▲                    │                        │
                    ├─── leave, blame ───┼──── reissue, too old ──┘
                    │                    └──── leave, blame: once too often ──► set aside
                 reopen: a step that was closed

After each call that changes anything, `assign` says what starts where. Longest first on the least loaded generator is
the rule of Graham (1969, SIAM J. Appl. Math. 17) for a short makespan. The longest is never passed over for a shorter
one that would fit: it would otherwise be started last. Nobody takes more than an even share of what is to be made, so
that the first generator with new weights leaves something for those that are still loading them.

A rollout that generators died with (`Suspects`) is made alone. One generator at a time is kept for such: it drains,
while the others go on, and then has nothing else to make; where others have nothing to do, they take suspects too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vipray.dispatch.generator_load import GeneratorLoads
from vipray.dispatch.pending import StepRollouts
from vipray.dispatch.staleness import StalenessAction, StalenessDecision, StalenessPolicy
from vipray.dispatch.suspects import Suspects
from vipray.records import RolloutId

_TOGETHER = 4  # rollouts of a prompt that start together where there is room: one prefill, and still a mix of lengths


class Dispatcher:
    """Who makes which rollout, over several steps at once.

    Args:
        staleness: which step may be started on which version, and what may enter a batch.
        max_rollouts: in flight at one generator at most, >= 1.
        max_tokens: expected tokens in flight at one generator at most, unless a single rollout has more.
        max_kills: generators that a rollout may bring down before it is set aside, >= 1.
    """

    def __init__(self, staleness: StalenessPolicy, *, max_rollouts: int, max_tokens: float, max_kills: int = 3) -> None:
        self._staleness = staleness
        self._loads = GeneratorLoads(max_rollouts, max_tokens)
        self._suspects = Suspects(max_kills)
        self._kept = _Kept()
        self._gone: set[str] = set()
        self._steps: dict[int, StepRollouts] = {}  # in order of step
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

    def leave(self, generator_id: str, *, is_suspicious: bool = True) -> list[RolloutId]:
        """Remove a generator and make what it has not finished pending again; does nothing when it has left.

        Args:
            generator_id: who leaves.
            is_suspicious: whether something that it made may be the cause; False where the node died, where it was
                asked to leave, or where `blame` has named the cause.

        Returns:
            What is made again; what is set aside now is not among it.
        """
        if generator_id not in self._loads:
            return []
        if is_suspicious:
            self._note_loss(self._loads.making_at(generator_id))
        self._gone.add(generator_id)
        self._loads.leave(generator_id)
        return [rollout_id for step in self._steps.values() for rollout_id in step.give_up(generator_id)]

    def blame(self, rollout_id: RolloutId, generator_id: str) -> bool:
        """Note that an engine failed on this very rollout, and make it again unless it has failed too often.

        Called before the generator leaves, if it does. Nothing is counted when the generator has left, or was not
        making the rollout: the failure has been counted.

        Returns:
            Whether the rollout is set aside now.
        """
        if self._loads.end(generator_id, rollout_id):
            self._suspects.blame(rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is None:
            return False
        if step.set_aside_if_guilty(rollout_id):
            return True
        step.reissue(rollout_id, generator_id, is_retry=False)
        return False

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
        self._steps[step] = StepRollouts(rollout_ids, expected_tokens, self._suspects)

    def reopen(self, step: int, rollout_ids: Sequence[RolloutId], expected_tokens: Mapping[str, float]) -> None:
        """Open a step again some of whose rollouts were lost after its batch was closed.

        Args:
            step: closed; it goes before all later ones again.
            rollout_ids: distinct, of this step: exactly what is made again.
            expected_tokens: > 0, by prompt id.

        Raises:
            ValueError: a step that is open or was never closed, or a rollout that comes twice or is of another step.
        """
        if step not in self._closed:
            state = "is still open" if step in self._steps else "was never closed"
            raise ValueError(f"step {step} {state}: only what was closed can be opened again")
        if any(rollout_id.step != step for rollout_id in rollout_ids):
            raise ValueError(f"rollouts of another step cannot be made for step {step}")
        reopened = StepRollouts(rollout_ids, expected_tokens, self._suspects, is_reopened=True)
        self._steps = dict(sorted({**self._steps, step: reopened}.items()))
        self._closed.remove(step)

    def restore(self, rollout_id: RolloutId, policy_version_first: int) -> bool:
        """Count a rollout that a checkpoint brings along.

        Args:
            rollout_id: pending, of an open step.
            policy_version_first: version that sampled its first token.

        Returns:
            False where it is too old for its step, or was counted before: then nothing is counted.

        Raises:
            ValueError: the rollout is of no step that is open.
        """
        step = self._steps.get(rollout_id.step)
        if step is None:
            raise ValueError(f"{rollout_id} is of no step that is open: add the step before its rollouts are restored")
        decision = self._staleness.at_entry(rollout_id.step, policy_version_first)
        return decision.action is StalenessAction.ADMIT and step.count(rollout_id)

    def assign(self) -> dict[str, list[RolloutId]]:
        """Start whatever there is room for; return what each generator has to start now."""
        started: dict[str, list[RolloutId]] = {}
        self._keep_one_for_suspects(started)
        self._assign_others(started)
        self._start_suspects_at_the_idle(started)
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
            ADMIT: it counts. REISSUE: too old, it is made again. DROP: it was counted before or set aside, or its
            batch is closed.

        Raises:
            ValueError: the rollout is of no step that was added.
        """
        self._loads.end(generator_id, rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is None:
            self._require_closed(rollout_id)
            return StalenessDecision(StalenessAction.DROP, f"the batch of step {rollout_id.step} is closed")
        if (reason := step.unwanted(rollout_id)) is not None:
            return StalenessDecision(StalenessAction.DROP, reason)
        decision = self._staleness.at_entry(rollout_id.step, policy_version_first)
        if decision.action is StalenessAction.REISSUE and step.ledger.is_due(rollout_id):
            step.reissue(rollout_id, generator_id, is_retry=True)
            return decision
        if not step.count(rollout_id):
            return StalenessDecision(StalenessAction.DROP, f"{rollout_id} was counted before")
        return decision

    def reissue(self, rollout_id: RolloutId, generator_id: str) -> None:
        """Make a rollout pending again whose result was lost on the way; does nothing when another makes it already."""
        self._loads.end(generator_id, rollout_id)
        step = self._steps.get(rollout_id.step)
        if step is not None:
            step.reissue(rollout_id, generator_id, is_retry=False)

    # Batches

    def is_complete(self, step: int) -> bool:
        """Whether every rollout of an open step is counted or set aside."""
        return self._steps[step].ledger.is_complete

    def unfinished(self, step: int) -> list[RolloutId]:
        """Rollouts of an open step that are still to be counted."""
        return self._steps[step].ledger.unfinished

    def set_aside(self, step: int) -> dict[RolloutId, str]:
        """Rollouts of an open step that are not made any more, and why."""
        return {rollout_id: self._suspects.reason(rollout_id) for rollout_id in self._steps[step].ledger.set_aside}

    def close_step(self, step: int) -> list[RolloutId]:
        """Close a batch with what has arrived; return what it does without, also what was set aside.

        Results that come later are dropped.
        """
        self._closed.add(step)
        self._suspects.forget(step)
        ledger = self._steps.pop(step).ledger
        return [*ledger.set_aside, *ledger.drop_unfinished()]

    def superfluous(self) -> dict[str, list[RolloutId]]:
        """What generators are making although nobody waits for it, so that it can be aborted."""
        found = {
            generator_id: [rollout_id for rollout_id in making if not self._is_due(rollout_id)]
            for generator_id, making in self._loads.making().items()
        }
        return {generator_id: rollout_ids for generator_id, rollout_ids in found.items() if rollout_ids}

    def has_pending(self) -> bool:
        """Whether any rollout waits for a generator."""
        return any(step.has_pending for step in self._steps.values())

    def metrics(self, step: int) -> dict[str, float]:
        """Rollouts of an open step that were issued again (too old among them), came twice, or were given up."""
        return {**self._steps[step].ledger.metrics(), "too_old": float(self._steps[step].num_too_old)}

    def _note_loss(self, rollout_ids: Sequence[RolloutId]) -> None:
        self._suspects.note_loss(rollout_ids)
        for rollout_id in rollout_ids:
            if rollout_id.step in self._steps:
                self._steps[rollout_id.step].set_aside_if_guilty(rollout_id)

    def _keep_one_for_suspects(self, started: dict[str, list[RolloutId]]) -> None:
        """Start a suspect, or let the generator drain that has least to do: one at a time, while the others go on."""
        kept = self._kept.generator_id
        if kept not in self._loads or self._loads.is_open(kept):
            kept = ""  # lost, or done with what it was kept for
        elif not self._kept.is_draining:
            return
        for step, is_retry, versions in self._waiting_suspects():
            chosen = self._loads.least_loaded(versions)
            is_idle = chosen is not None and self._loads.is_idle(chosen)
            if kept and not is_idle and self._loads.version(kept) in versions:
                return
            if chosen is None:
                continue
            if kept:
                self._loads.open(kept)
            self._kept = _Kept(chosen, is_draining=not is_idle)
            if is_idle:
                self._start_suspect(step, is_retry, chosen, started)
            else:
                self._loads.close(chosen)
            return
        if kept:
            self._loads.open(kept)
        self._kept = _Kept()

    def _assign_others(self, started: dict[str, list[RolloutId]]) -> None:
        for number, step in self._steps.items():
            for is_retry in (True, False):
                if step.pending[is_retry] and not self._assign(number, step, is_retry, started):
                    return

    def _start_suspects_at_the_idle(self, started: dict[str, list[RolloutId]]) -> None:
        """Start suspects where nothing else is to be made."""
        for step, is_retry, versions in self._waiting_suspects():
            while step.pending_suspects[is_retry]:
                generator_id = self._loads.least_loaded(versions)
                if generator_id is None or not self._loads.is_idle(generator_id):
                    break
                self._start_suspect(step, is_retry, generator_id, started)

    def _waiting_suspects(self) -> Iterator[tuple[StepRollouts, bool, list[int | None]]]:
        """Queues of suspects that are not empty, oldest step first, with the versions that they may be made on."""
        for number, step in self._steps.items():
            for is_retry in (True, False):
                if step.pending_suspects[is_retry]:
                    yield step, is_retry, self._versions_for(number, is_retry)

    def _start_suspect(
        self, step: StepRollouts, is_retry: bool, generator_id: str, started: dict[str, list[RolloutId]]
    ) -> None:
        """Start the next suspect at an idle generator, which takes nothing else before it is done."""
        rollout_id = step.issue_suspect(is_retry, generator_id)
        self._loads.start(generator_id, [rollout_id], step.tokens_of(rollout_id))
        self._loads.close(generator_id)
        started.setdefault(generator_id, []).append(rollout_id)

    def _versions_for(self, number: int, is_retry: bool) -> list[int | None]:
        """Versions of generators on which rollouts of a step may be started."""
        return [
            version
            for version in self._loads.versions()
            if self._staleness.may_start(number, version, is_retry=is_retry).action is StalenessAction.START
        ]

    def _assign(self, number: int, step: StepRollouts, is_retry: bool, started: dict[str, list[RolloutId]]) -> bool:
        """Start rollouts of one queue. Returns False where the longest of it waits for room, and all behind it."""
        pending = step.pending[is_retry]
        versions = self._versions_for(number, is_retry)
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
        return unfinished / self._loads.num_open - self._loads.tokens(generator_id)

    def _is_due(self, rollout_id: RolloutId) -> bool:
        step = self._steps.get(rollout_id.step)
        return step is not None and step.ledger.is_due(rollout_id)

    def _require_closed(self, rollout_id: RolloutId) -> None:
        if rollout_id.step not in self._closed:
            raise ValueError(f"{rollout_id} is of no step that was added")


@dataclass(frozen=True)
class _Kept:
    """The generator that is kept for suspects, if any: it drains, or makes one."""

    generator_id: str = ""
    is_draining: bool = False
