"""Losses by kind, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json

from vipray.records import Recovery
from vipray.report.recoveries import RECOVERIES_FILE, RecoveryRow, load_recoveries, recovery_rows

LOSSES = [
    Recovery("generator", "generator-1", "died", 10.0, 10.5, 14.0, 7),
    Recovery("learner", "learner", "died", 20.0, 26.0, 26.0),
    Recovery("generator", "generator-0", "died", 5.0, 5.25, None, 3),
]


def test_losses_are_read_in_order_and_counted_by_kind(tmp_path):
    assert load_recoveries(tmp_path) == ()
    lines = [json.dumps(dataclasses.asdict(loss)) for loss in LOSSES]
    (tmp_path / RECOVERIES_FILE).write_text("\n".join(lines) + '\n{"kind": "gen')
    recoveries = load_recoveries(tmp_path)
    assert [recovery.actor for recovery in recoveries] == ["generator-0", "generator-1", "learner"]
    assert recovery_rows(recoveries) == [
        RecoveryRow("generator", 2, 10, (0.375, 0.5), 4.0),
        RecoveryRow("learner", 1, 0, (6.0, 6.0), 6.0),
    ]
    assert recovery_rows([]) == []
