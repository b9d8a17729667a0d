"""Collects who was at work when, from what actors report of themselves."""

from __future__ import annotations

from actors.generator_pool import PoolListener
from vipray.records import RolloutReceipt, Span, TimelineSpan, Verdict


class TimelineRecorder(PoolListener):
    """Spans since the last flush."""

    def __init__(self) -> None:
        self._spans: list[TimelineSpan] = []

    def add(self, role: str, name: str, span: Span, *, step: int | None = None, version: int | None = None) -> None:
        """Note what the only actor of a role did, or what all of them did together."""
        self._spans.append(TimelineSpan(role, role, name, span.start_s, span.end_s, step, version))

    def on_made(self, receipt: RolloutReceipt) -> None:
        """A generator has made a rollout, whether it is counted or not."""
        actor, step, span = receipt.generator_id, receipt.rollout_id.step, receipt.span
        version = receipt.policy_version_first
        self._spans.append(TimelineSpan(actor, "generator", "generate", span.start_s, span.end_s, step, version))

    def on_scored(self, verdict: Verdict) -> None:
        """A verifier has scored a rollout."""
        step, span = verdict.rollout_id.step, verdict.span
        self._spans.append(TimelineSpan("verifiers", "verifier", "verify", span.start_s, span.end_s, step))

    def on_confirmed(self, generator_id: str, version: int, span: Span) -> None:
        """A generator has taken new weights."""
        self._spans.append(
            TimelineSpan(generator_id, "generator", "load_weights", span.start_s, span.end_s, version=version)
        )

    def on_lost(self, generator_id: str, at_s: float, *, is_suspicious: bool) -> int:
        """A generator is gone."""
        self._spans.append(TimelineSpan(generator_id, "generator", "lost", at_s, at_s))
        return 0

    def flush(self) -> list[TimelineSpan]:
        """Return what was collected, and forget it."""
        spans, self._spans = self._spans, []
        return spans
