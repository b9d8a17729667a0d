"""What was lost in a run and made good, by kind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vipray.evaluation.chaos_report import read_recoveries
from vipray.records import Recovery

RECOVERIES_FILE = "recoveries.jsonl"


@dataclass(frozen=True)
class RecoveryRow:
    """The losses of one kind.

    Attributes:
        kind: as in `Recovery.kind`.
        number: of losses.
        num_reissued: rollouts that were made again.
        reissue_s: from finding out until the work was given to somebody again, median and longest.
        serving_s: until a replacement served, longest; None where none did.
    """

    kind: str
    number: int
    num_reissued: int
    reissue_s: tuple[float, float]
    serving_s: float | None


def load_recoveries(run_dir: Path) -> tuple[Recovery, ...]:
    """Recoveries in the order of the losses; none where nothing was lost."""
    path = run_dir / RECOVERIES_FILE
    return tuple(read_recoveries(path.read_text().splitlines())) if path.is_file() else ()


def recovery_rows(recoveries: Sequence[Recovery]) -> list[RecoveryRow]:
    """One row for each kind, in the order in which kinds were first lost."""
    rows = []
    for kind in dict.fromkeys(recovery.kind for recovery in recoveries):
        mine = [recovery for recovery in recoveries if recovery.kind == kind]
        reissue_s = [recovery.reissued_at_s - recovery.lost_at_s for recovery in mine]
        serving_s = [r.serving_at_s - r.lost_at_s for r in mine if r.serving_at_s is not None]
        rows.append(
            RecoveryRow(
                kind=kind,
                number=len(mine),
                num_reissued=sum(recovery.num_reissued for recovery in mine),
                reissue_s=(statistics.median(reissue_s), max(reissue_s)),
                serving_s=max(serving_s, default=None),
            )
        )
    return rows
