"""The rollouts of a step that wait for a generator, beside its ledger.

Pending rollouts go longest first, those of a prompt together where it makes no difference to the order.

Expected lengths fall into classes, each a quarter longer than the one below. Within a class nobody can tell which
rollout is longer, so the choice is free, and goes to the prompt that the asking generator has begun (its prefix is in
the cache there), else to one that nobody has begun, else to any.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vipray.dispatch.ledger import Ledger
from vipray.dispatch.suspects import Suspects
from vipray.records import RolloutId

_CLASS_RATIO = 1.25  # predictions are no better than this


class PendingRollouts:
    """Rollouts that nobody makes, by length class and prompt."""

    def __init__(self) -> None:
        self._of_prompt: dict[str, dict[RolloutId, None]] = {}
        self._tokens: dict[str, float] = {}
        self._class_of: dict[str, int] = {}
        self._home: dict[str, str] = {}  # the generator that took from a prompt last
        # Prompts in order, by class; and those of them that each generator has begun, "" for nobody.
        self._classes: dict[int, dict[str, None]] = {}
        self._begun: defaultdict[tuple[int, str], dict[str, None]] = defaultdict(dict)

    def __bool__(self) -> bool:
        return bool(self._of_prompt)

    def add(self, rollout_id: RolloutId, tokens: float) -> None:
        """Add a rollout of `tokens` > 0 expected tokens, the same for all rollouts of a prompt."""
        prompt_id = rollout_id.prompt_id
        if prompt_id not in self._of_prompt:
            self._of_prompt[prompt_id] = {}
            self._tokens[prompt_id] = tokens
            self._class_of[prompt_id] = math.floor(math.log(tokens, _CLASS_RATIO))
            self._classes.setdefault(self._class_of[prompt_id], {})[prompt_id] = None
            self._begun_with(prompt_id)[prompt_id] = None
        self._of_prompt[prompt_id][rollout_id] = None

    def discard(self, rollout_id: RolloutId) -> None:
        """Remove a rollout if it is here."""
        prompt_id = rollout_id.prompt_id
        rollouts = self._of_prompt.get(prompt_id, {})
        if rollouts.pop(rollout_id, 0) == 0 or rollouts:
            return
        del self._of_prompt[prompt_id]
        self._begun_with(prompt_id).pop(prompt_id)
        prompts = self._classes[self._class_of[prompt_id]]
        prompts.pop(prompt_id)
        if not prompts:
            del self._classes[self._class_of[prompt_id]]

    def next_prompt(self, generator_id: str) -> str:
        """The prompt of the longest class that suits a generator best. There must be one."""
        longest = max(self._classes)
        for home in (generator_id, ""):
            if prompts := self._begun.get((longest, home)):
                return next(iter(prompts))
        return next(iter(self._classes[longest]))

    def tokens_of(self, prompt_id: str) -> float:
        """Expected tokens of one rollout of a prompt that is here."""
        return self._tokens[prompt_id]

    def take(self, prompt_id: str, number: int, generator_id: str) -> list[RolloutId]:
        """Remove up to `number` rollouts of a prompt for a generator, which is then the one that has begun it."""
        taken = list(self._of_prompt[prompt_id])[:number]
        self._move(prompt_id, generator_id)
        for rollout_id in taken:
            self.discard(rollout_id)
        return taken

    def forget(self, generator_id: str) -> None:
        """Note that what a generator has begun is in no cache any more."""
        for prompt_id in [prompt_id for prompt_id, home in self._home.items() if home == generator_id]:
            if prompt_id in self._of_prompt:
                self._move(prompt_id, "")
            else:
                del self._home[prompt_id]

    def _move(self, prompt_id: str, home: str) -> None:
        self._begun_with(prompt_id).pop(prompt_id)
        self._home[prompt_id] = home
        self._begun_with(prompt_id)[prompt_id] = None

    def _begun_with(self, prompt_id: str) -> dict[str, None]:
        return self._begun[self._class_of[prompt_id], self._home.get(prompt_id, "")]


class StepRollouts:
    """Ledger and queues of one step.

    Args:
        rollout_ids: distinct, all to be made.
        expected_tokens: > 0, by prompt id.
        suspects: who is to be made alone, or not at all.
        is_reopened: whether the step has other rollouts too, which are settled.

    Attributes:
        ledger: which rollouts are pending, in flight, or settled.
        pending: those pending that may be made together; under True what was too old once.
        pending_suspects: those that are made alone, in order; under True what was too old once.
        num_too_old: results that were of no use.
        unfinished_tokens: expected tokens of what is pending or in flight.

    Raises:
        ValueError: an id occurs twice.
    """

    def __init__(
        self,
        rollout_ids: Sequence[RolloutId],
        expected_tokens: Mapping[str, float],
        suspects: Suspects,
        *,
        is_reopened: bool = False,
    ) -> None:
        self.ledger = Ledger(rollout_ids)
        self.pending = {False: PendingRollouts(), True: PendingRollouts()}
        self.pending_suspects: dict[bool, dict[RolloutId, None]] = {False: {}, True: {}}
        self._suspects = suspects
        self._is_reopened = is_reopened
        self.num_too_old = 0
        self.unfinished_tokens = 0.0
        self._expected_tokens = expected_tokens
        for rollout_id in rollout_ids:
            self._add(rollout_id, is_retry=False)
            self.unfinished_tokens += expected_tokens[rollout_id.prompt_id]

    @property
    def has_pending(self) -> bool:
        """Whether any rollout waits for a generator."""
        return any(self.pending.values()) or any(self.pending_suspects.values())

    def tokens_of(self, rollout_id: RolloutId) -> float:
        """Expected tokens of a rollout."""
        return self._expected_tokens[rollout_id.prompt_id]

    def unwanted(self, rollout_id: RolloutId) -> str | None:
        """Why a result is of no use whatever it is; None where it may be of use."""
        if self._is_reopened and rollout_id not in self.ledger:
            return f"{rollout_id} was settled before step {rollout_id.step} was opened again"
        if self.ledger.is_set_aside(rollout_id):
            return f"{rollout_id} was set aside: {self._suspects.reason(rollout_id)}"
        return None

    def issue(self, rollout_ids: Sequence[RolloutId], generator_id: str) -> None:
        """Note that a generator makes rollouts that were taken from a queue."""
        for rollout_id in rollout_ids:
            self.ledger.issue(rollout_id, generator_id)

    def issue_suspect(self, is_retry: bool, generator_id: str) -> RolloutId:
        """Take the first suspect of a queue for a generator. There must be one."""
        queue = self.pending_suspects[is_retry]
        rollout_id = next(iter(queue))
        del queue[rollout_id]
        self.ledger.issue(rollout_id, generator_id)
        return rollout_id

    def give_up(self, generator_id: str) -> list[RolloutId]:
        """Make what a lost generator has not finished pending again and return it."""
        for queue in self.pending.values():
            queue.forget(generator_id)
        lost = self.ledger.give_up(generator_id)
        for rollout_id in lost:
            self._add(rollout_id, is_retry=False)
        return lost

    def reissue(self, rollout_id: RolloutId, generator_id: str, *, is_retry: bool) -> None:
        """Make a rollout pending again, `is_retry` where it was too old; nothing when another generator makes it."""
        self.num_too_old += is_retry
        if self.ledger.reissue(rollout_id, generator_id):
            self._add(rollout_id, is_retry=is_retry)

    def count(self, rollout_id: RolloutId) -> bool:
        """Count a rollout, unless it was settled before."""
        if not self.ledger.complete(rollout_id):
            return False
        self._discard(rollout_id)
        return True

    def set_aside_if_guilty(self, rollout_id: RolloutId) -> bool:
        """Set a rollout aside that is still due although it is known to bring generators down."""
        if self._suspects.is_set_aside(rollout_id) and self.ledger.put_aside(rollout_id):
            self._discard(rollout_id)
        return self.ledger.is_set_aside(rollout_id)

    def _discard(self, rollout_id: RolloutId) -> None:
        """Take a settled rollout out of the queues, where it is if its generator was given up before."""
        self.unfinished_tokens -= self.tokens_of(rollout_id)
        for queue in self.pending.values():
            queue.discard(rollout_id)
        for suspects in self.pending_suspects.values():
            suspects.pop(rollout_id, None)

    def _add(self, rollout_id: RolloutId, *, is_retry: bool) -> None:
        if self._suspects.is_suspect(rollout_id):
            self.pending_suspects[is_retry][rollout_id] = None
        else:
            self.pending[is_retry].add(rollout_id, self.tokens_of(rollout_id))
