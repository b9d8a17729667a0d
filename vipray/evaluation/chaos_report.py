"""What a run that was disturbed on purpose came to: which kills were noticed, how fast, and what they cost.

    kill ──── detection ────► lost ──── recovery ────► reissued ─────────────► serving
    at_s                    lost_at_s                reissued_at_s           serving_at_s

A recovery is matched to the last kill of its kind before it that has none yet, and that its driver has seen; where two
kills of one kind cross, their mean is right all the same. The loss of a node shows as the losses of the actors on it.
A driver leaves no trace of when it was missed, so that its recovery is counted from the kill; an object none of when it
was lost, so that it is known by its recovery alone.

Two runs are compared by what they trained on: rollout ids, allocations, rewards and tokens.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from vipray.arrays import FloatArray
from vipray.records import Recovery, RolloutId

ACTOR_KINDS = ("generator", "verifier", "predictor", "allocator", "learner")
KINDS = (*ACTOR_KINDS, "node", "driver", "object")
_CLOCKS_S = 0.05  # by which a loss may seem to come before its kill: the call that kills takes a moment
_COVER_S = 30.0  # a loss that nobody noticed this long before the whole driver went is covered by that


@dataclass(frozen=True)
class Kill:
    """What was killed.

    Attributes:
        kind: one of `KINDS`.
        at_s: when, in seconds since the epoch.
        victims: by kind, the actors that went with it; of a node those that it held.
    """

    kind: str
    at_s: float
    victims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """A kill and the recoveries from it, none where nobody noticed."""

    kill: Kill
    recoveries: tuple[Recovery, ...] = ()

    @property
    def detection_s(self) -> float | None:
        """From the kill until it was noticed; None where that is not known."""
        if not self.recoveries or self.kill.kind in ("driver", "object"):
            return None
        return max(0.0, self._lost_at_s - self.kill.at_s)

    @property
    def recovery_s(self) -> float | None:
        """From the detection until everything that was under way was given to somebody again."""
        if not self.recoveries:
            return None
        return max(recovery.reissued_at_s for recovery in self.recoveries) - self._since_s

    @property
    def replacement_s(self) -> float | None:
        """From the detection until every replacement served; None where one never did."""
        serving = [recovery.serving_at_s for recovery in self.recoveries if recovery.serving_at_s is not None]
        if not serving or len(serving) < len(self.recoveries):
            return None
        return max(serving) - self._since_s

    @property
    def _since_s(self) -> float:
        return self.kill.at_s if self.kill.kind == "driver" else self._lost_at_s

    @property
    def _lost_at_s(self) -> float:
        return min(recovery.lost_at_s for recovery in self.recoveries)


@dataclass(frozen=True)
class Quantiles:
    """Median, 95 % quantile and maximum of some seconds."""

    median: float
    p95: float
    largest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quantiles | None:
        """The quantiles of the values that are known; None where none is."""
        known: FloatArray = np.array([value for value in values if value is not None])
        if not len(known):
            return None
        return cls(float(np.median(known)), float(np.quantile(known, 0.95)), float(known.max()))


@dataclass(frozen=True)
class KindFigures:
    """What came of the kills of one kind.

    Attributes:
        kind: one of `KINDS`.
        kills: number of them.
        detected: those that a recovery belongs to.
        covered: of the others, those that another recovery made good: an actor that was starting in place of one
            that was lost, or that went with its driver soon after.
        detection_s: from kill to detection.
        recovery_s: from detection to reissue.
        replacement_s: from detection until the replacement served.
    """

    kind: str
    kills: int
    detected: int
    covered: int
    detection_s: Quantiles | None
    recovery_s: Quantiles | None
    replacement_s: Quantiles | None

    @property
    def missed(self) -> int:
        """Kills that left no trace."""
        return self.kills - self.detected - self.covered


def read_recoveries(lines: Iterable[str]) -> list[Recovery]:
    """Read the lines of `recoveries.jsonl`; one that was cut off while it was written is left out."""
    found = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.append(Recovery(**{name: row[name] for name in Recovery.__dataclass_fields__ if name in row}))
    return sorted(found, key=lambda recovery: recovery.lost_at_s)


def match(kills: Sequence[Kill], recoveries: Sequence[Recovery]) -> list[Match]:
    """Give each kill its recoveries; a recovery belongs to one kill at most."""
    drivers_s = [kill.at_s for kill in kills if kill.kind == "driver"]
    open_victims = [dict(kill.victims) if kill.kind == "node" else {kill.kind: 1} for kill in kills]
    found: list[list[Recovery]] = [[] for _ in kills]
    for recovery in sorted(recoveries, key=_shown_at_s):
        shown_s = _shown_at_s(recovery)
        gone_s = max((at_s for at_s in drivers_s if at_s < shown_s - _CLOCKS_S), default=-math.inf)
        candidates = [
            index
            for index, kill in enumerate(kills)
            if open_victims[index].get(recovery.kind, 0) and gone_s <= kill.at_s <= shown_s + _CLOCKS_S
        ]
        if candidates:
            latest = max(candidates, key=lambda index: kills[index].at_s)
            open_victims[latest][recovery.kind] -= 1
            found[latest].append(recovery)
    return [Match(kill, tuple(own)) for kill, own in zip(kills, found, strict=True)]


def kind_figures(kills: Sequence[Kill], recoveries: Sequence[Recovery]) -> list[KindFigures]:
    """Figures for each kind that was killed, in the order of `KINDS`."""
    matches = match(kills, recoveries)
    figures = []
    for kind in KINDS:
        own = [entry for entry in matches if entry.kill.kind == kind]
        if not own:
            continue
        missed = [entry.kill for entry in own if not entry.recoveries]
        figures.append(
            KindFigures(
                kind=kind,
                kills=len(own),
                detected=len(own) - len(missed),
                covered=sum(_is_covered(kill, kills, recoveries) for kill in missed),
                detection_s=Quantiles.of(entry.detection_s for entry in own),
                recovery_s=Quantiles.of(entry.recovery_s for entry in own),
                replacement_s=Quantiles.of(entry.replacement_s for entry in own),
            )
        )
    return figures


def _shown_at_s(recovery: Recovery) -> float:
    """A time of a recovery that cannot be before its cause: a driver's loss is dated by its last sign of life."""
    return recovery.reissued_at_s if recovery.kind == "driver" else recovery.lost_at_s


def _is_covered(kill: Kill, kills: Sequence[Kill], recoveries: Sequence[Recovery]) -> bool:
    kinds = {kill.kind, *kill.victims}
    with_driver = any(other.kind == "driver" and 0 <= other.at_s - kill.at_s <= _COVER_S for other in kills)
    under_way = any(
        recovery.kind in kinds and recovery.lost_at_s <= kill.at_s <= (recovery.serving_at_s or recovery.reissued_at_s)
        for recovery in recoveries
    )
    return with_driver or under_way


@dataclass(frozen=True)
class TrainedOn:
    """What a run trained on.

    Attributes:
        allocations: with at least the columns step, prompt_id and n.
        rollouts: of all batches (`ROLLOUT_SCHEMA`).
        dropped: by step, the number of rollouts that were left out on purpose.
    """

    allocations: pa.Table
    rollouts: pa.Table
    dropped: Mapping[int, int] = field(default_factory=dict)

    def n(self) -> dict[tuple[int, str], int]:
        """Rollouts that were asked for, by step and prompt."""
        columns = (self.allocations.column(name).to_pylist() for name in ("step", "prompt_id", "n"))
        return {(step, prompt_id): n for step, prompt_id, n in zip(*columns, strict=True)}

    def asked(self) -> set[RolloutId]:
        """Ids that were asked for."""
        return {RolloutId(step, prompt_id, k) for (step, prompt_id), n in self.n().items() for k in range(n)}

    def batch_ids(self) -> list[RolloutId]:
        """Ids that were trained on, in the order of the table, each as often as it occurs."""
        columns = (self.rollouts.column(name).to_pylist() for name in RolloutId._fields)
        return [RolloutId(*values) for values in zip(*columns, strict=True)]

    def until(self, step: int) -> TrainedOn:
        """What the steps before `step` trained on."""
        allocations, rollouts = (
            table.filter(pa.array([value < step for value in table.column("step").to_pylist()], pa.bool_()))
            for table in (self.allocations, self.rollouts)
        )
        return TrainedOn(allocations, rollouts, self.dropped)


@dataclass(frozen=True)
class Account:
    """Whether each rollout that was asked for was counted once.

    Attributes:
        asked: rollouts of all allocations.
        lost: those that no batch has, beyond those that were dropped on purpose.
        double: occurrences of an id beyond its first.
        strange: ids in a batch that no allocation asked for.
    """

    asked: int
    lost: int
    double: int
    strange: int


def account(run: TrainedOn) -> Account:
    """Hold a run's batches against its allocations."""
    asked, ids = run.asked(), run.batch_ids()
    missing = Counter(rollout_id.step for rollout_id in asked.difference(ids))
    return Account(
        asked=len(asked),
        lost=sum(max(0, number - run.dropped.get(step, 0)) for step, number in missing.items()),
        double=len(ids) - len(set(ids)),
        strange=len(set(ids) - asked),
    )


@dataclass(frozen=True)
class Differences:
    """How many things differ between what two runs trained on.

    Attributes:
        compared: rollouts that both have.
        ids: rollouts that one of them has alone.
        n: prompts of a step that did not get the same number of rollouts.
        rewards: rollouts of both with another reward or outcome; None: not comparable.
        tokens: rollouts of both with other tokens; None: not comparable.
    """

    compared: int
    ids: int
    n: int
    rewards: int | None
    tokens: int | None

    @property
    def total(self) -> int:
        """All of them together."""
        return self.ids + self.n + (self.rewards or 0) + (self.tokens or 0)


def differences(one: TrainedOn, other: TrainedOn, *, contents: bool = True) -> Differences:
    """Compare what two runs trained on; rewards and tokens only with `contents`."""
    n_one, n_other = one.n(), other.n()
    rows_one, rows_other = _rows(one), _rows(other)
    common = sorted(rows_one.keys() & rows_other.keys())

    def differing(*names: str) -> int | None:
        if not contents:
            return None
        return sum(any(rows_one[key][name] != rows_other[key][name] for name in names) for key in common)

    return Differences(
        compared=len(common),
        ids=len(rows_one.keys() ^ rows_other.keys()),
        n=sum(n_one.get(key) != n_other.get(key) for key in n_one.keys() | n_other.keys()),
        rewards=differing("reward", "outcome"),
        tokens=differing("completion_token_ids"),
    )


def _rows(run: TrainedOn) -> dict[RolloutId, dict[str, object]]:
    rows = run.rollouts.select(["reward", "outcome", "completion_token_ids"]).to_pylist()
    return dict(zip(run.batch_ids(), rows, strict=True))


@dataclass(frozen=True)
class ChaosReport:
    """Everything that was found.

    Attributes:
        kinds: figures of the kills, by kind.
        reissued: rollouts that were issued again.
        unmatched: recoveries that belong to no kill.
        account: of the disturbed run.
        differences: from the undisturbed run.
        parameters: largest difference of a final parameter; None: not comparable.
        is_complete: whether the disturbed run came to its end.
    """

    kinds: tuple[KindFigures, ...]
    reissued: int
    unmatched: int
    account: Account
    differences: Differences
    parameters: float | None
    is_complete: bool

    @property
    def kills(self) -> int:
        """All kills."""
        return sum(figures.kills for figures in self.kinds)

    def problems(self) -> list[str]:
        """A line for each thing that must not happen."""
        found = [] if self.is_complete else ["the disturbed run did not come to its end"]
        counts = {
            "rollouts are lost": self.account.lost,
            "rollouts are counted twice": self.account.double,
            "rollouts were trained on that nobody asked for": self.account.strange,
            "differences from the undisturbed run": self.differences.total,
        }
        found += [f"{number} {what}" for what, number in counts.items() if number]
        if self.parameters:
            found.append(f"final parameters differ by up to {self.parameters:.3g}")
        return found


def report(
    kills: Sequence[Kill],
    recoveries: Sequence[Recovery],
    undisturbed: TrainedOn,
    disturbed: TrainedOn,
    *,
    parameters: float | None,
    is_complete: bool,
    is_comparable: bool,
) -> ChaosReport:
    """Put everything together. Where runs are not comparable, only ids and counts of the first step are compared."""
    num_matched = sum(len(entry.recoveries) for entry in match(kills, recoveries))
    first, second = (undisturbed, disturbed) if is_comparable else (undisturbed.until(1), disturbed.until(1))
    return ChaosReport(
        kinds=tuple(kind_figures(kills, recoveries)),
        reissued=sum(recovery.num_reissued for recovery in recoveries),
        unmatched=len(recoveries) - num_matched,
        account=account(disturbed),
        differences=differences(first, second, contents=is_comparable),
        parameters=parameters,
        is_complete=is_complete,
    )
