"""Pending rollouts, longest first, those of a prompt together where it makes no difference to the order.

Expected lengths fall into classes, each a quarter longer than the one below. Within a class nobody can tell which
rollout is longer, so the choice is free, and goes to the prompt that the asking generator has begun (its prefix is in
the cache there), else to one that nobody has begun, else to any.
"""

from __future__ import annotations

import math
from collections import defaultdict

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
