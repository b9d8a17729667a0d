"""The timeline as a trace for https://ui.perfetto.dev or chrome://tracing: a process a role, a thread an actor.

Format: "Trace Event Format", complete events (`ph` "X") and metadata (`ph` "M"), times in microseconds. Events of one
thread must not overlap, so an actor that does several things at once gets further threads.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vipray.records import TimelineSpan

TRACE_FILE = "trace.json"
ROLES = ("generator", "verifier", "predictor", "allocator", "learner", "controller")  # from top to bottom
_MICROSECONDS = 1e6


def write_trace(spans: Sequence[TimelineSpan], path: Path) -> None:
    """Write a trace, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"traceEvents": trace_events(spans), "displayTimeUnit": "ms"}))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def trace_events(spans: Sequence[TimelineSpan]) -> list[dict[str, Any]]:
    """Metadata, then one event for each span, with times since the first one."""
    origin = min((span.start_s for span in spans), default=0.0)
    threads = assign_threads(spans)
    roles = sort_roles({span.role for span in spans})
    events = [_named("process_name", roles.index(role), 0, role) for role in roles]
    for number, (role, actor, lane) in enumerate(threads):
        label = actor if not lane else f"{actor} ({lane + 1})"
        events.append(_named("thread_name", roles.index(role), number, label))
    for number, own in enumerate(threads.values()):
        for span in own:
            about = {"step": span.step, "version": span.version}
            events.append(
                {
                    "ph": "X",
                    "name": span.name if span.step is None else f"{span.name} {span.step}",
                    "cat": span.role,
                    "pid": roles.index(span.role),
                    "tid": number,
                    "ts": (span.start_s - origin) * _MICROSECONDS,
                    "dur": (span.end_s - span.start_s) * _MICROSECONDS,
                    "args": {key: value for key, value in about.items() if value is not None},
                }
            )
    return events


def assign_threads(spans: Sequence[TimelineSpan]) -> dict[tuple[str, str, int], list[TimelineSpan]]:
    """Spans by role, actor and lane; within a lane none overlaps the next."""
    of_actor: dict[tuple[str, str], list[TimelineSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        of_actor.setdefault((span.role, span.actor), []).append(span)
    rank = {role: number for number, role in enumerate(sort_roles({role for role, _ in of_actor}))}
    lanes: dict[tuple[str, str, int], list[TimelineSpan]] = {}
    for role, actor in sorted(of_actor, key=lambda key: (rank[key[0]], natural(key[1]))):
        free_at: list[tuple[float, int]] = []
        for span in of_actor[role, actor]:
            is_free = bool(free_at) and free_at[0][0] <= span.start_s
            lane = heapq.heappop(free_at)[1] if is_free else len(free_at)
            heapq.heappush(free_at, (span.end_s, lane))
            lanes.setdefault((role, actor, lane), []).append(span)
    return lanes


def sort_roles(roles: set[str]) -> list[str]:
    """Known roles in the order of the pipeline, then the others."""
    return [*(role for role in ROLES if role in roles), *sorted(roles - set(ROLES))]


def natural(name: str) -> tuple[int, str]:
    """Sort key that puts `generator-2` before `generator-10`."""
    return len(name), name


def _named(kind: str, pid: int, tid: int, label: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": label}}
