"""A recording as a trace that Perfetto and Chrome open: the JSON of trace events.

In: a `Recording`. Out: one process per engine, with a lane for the loop's thread and one for each of the device's
streams; arrows lead from a launch to its forward and from a copy to its commit. Times are microseconds from the first
span on. The format: "Trace Event Format", events of phases X, M, s and f.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gapless.observe.meter import Part
from gapless.observe.recording import LOOP, Recording, Span
from gapless.records import Lane

LANES = (LOOP, Lane.COMPUTE.value, Lane.COPY.value, Lane.UPLOAD.value)
TITLES = {LOOP: "loop thread", **{lane.value: f"{lane.value} stream" for lane in Lane}}
WAITS = {part.label for part in Part if part.waits}
ARROWS = ((LOOP, "launch", Lane.COMPUTE.value, "forward"), (Lane.COPY.value, "copy", LOOP, "commit"))
Event = dict[str, Any]


def trace_of(recording: Recording) -> dict[str, Any]:
    """The whole trace, ready for `json.dump`."""
    spans = recording.spans()
    origin = spans[0].start if spans else 0.0
    events: list[Event] = []
    for engine, depth in enumerate(recording.depths):
        mine = [span for span in spans if span.engine == engine]
        events += _names(engine, depth, mine)
        events += [_complete(span, origin) for span in mine]
        events += _arrows(mine, origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "spans": len(spans),
            "dropped_spans": recording.dropped,
            "engines": [{"pid": engine + 1, "depth": depth} for engine, depth in enumerate(recording.depths)],
            "clock_error_us": [_rounded(slack_of(recording.spans(engine))) for engine in range(len(recording.depths))],
        },
    }


@dataclass(frozen=True, slots=True)
class Slack:
    """How far the device's spans could be moved against the host's and no effect would come before its cause, in
    seconds: `earlier`, until a forward began before its launch, `later`, until a commit began before its copy had
    landed. So the two clocks are off by no more than that; None: there is nothing to see it by."""

    earlier: float | None
    later: float | None


def slack_of(spans: Sequence[Span]) -> Slack:
    """The slack of one engine's spans."""
    found = []
    for lane, name, to_lane, to_name in ARROWS:
        pairs = _pairs(spans, (lane, name), (to_lane, to_name))
        edges = [b.start - (a.start if name == "launch" else a.end) for a, b in pairs]
        found.append(min(edges, default=None))
    return Slack(*found)


def _rounded(slack: Slack) -> Event:
    return {
        name: None if value is None else round(1e6 * value, 3)
        for name, value in (("earlier", slack.earlier), ("later", slack.later))
    }


def _names(engine: int, depth: int, spans: Iterable[Span]) -> list[Event]:
    used = {span.lane for span in spans} | {LOOP, Lane.COMPUTE.value, Lane.COPY.value}
    named = [_meta(engine, 0, "process_name", {"name": f"engine {engine + 1}, depth {depth}"})]
    for place, lane in enumerate(LANES):
        if lane in used:
            named.append(_meta(engine, place + 1, "thread_name", {"name": TITLES[lane]}))
            named.append(_meta(engine, place + 1, "thread_sort_index", {"sort_index": place}))
    return named


def _meta(engine: int, thread: int, name: str, args: Event) -> Event:
    return {"ph": "M", "pid": engine + 1, "tid": thread, "name": name, "args": args}


def _at(span: Span) -> Event:
    return {"pid": span.engine + 1, "tid": LANES.index(span.lane) + 1}


def _complete(span: Span, origin: float) -> Event:
    waits = span.lane == LOOP and span.name in WAITS
    event = {
        "ph": "X",
        **_at(span),
        "name": f"wait: {span.name}" if waits else span.name,
        "cat": "wait" if waits else "host" if span.lane == LOOP else "device",
        "ts": _us(span.start, origin),
        "dur": round(1e6 * (span.end - span.start), 3),
    }
    if span.step is not None:
        event["args"] = _about(span)
    return event


def _about(span: Span) -> Event:
    assert span.step is not None
    step = span.step
    about: Event = {"step": step.id, "kind": step.kind.value, "slot": step.slot, "rows": len(step.rows)}
    if span.zombies is not None:
        about["zombies"] = span.zombies
    return about


def _arrows(spans: Sequence[Span], origin: float) -> list[Event]:
    events = []
    for lane, name, to_lane, to_name in ARROWS:
        for before, after in _pairs(spans, (lane, name), (to_lane, to_name)):
            same = {"cat": "step", "name": f"{name} to {to_name}", "id": f"{before.engine}-{_id(before)}-{name}"}
            events.append({"ph": "s", **_at(before), "ts": _us(before.start, origin), **same})
            events.append({"ph": "f", "bp": "e", **_at(after), "ts": _us(after.start, origin), **same})
    return events


def _pairs(spans: Sequence[Span], one: tuple[str, str], other: tuple[str, str]) -> list[tuple[Span, Span]]:
    """Of each step the first span on lane and of name `one`, and of `other`."""
    first: dict[tuple[int, str, str], Span] = {}
    for span in spans:
        if span.step is not None:
            first.setdefault((_id(span), span.lane, span.name), span)
    return [
        (span, first[key[0], *other]) for key, span in first.items() if key[1:] == one and (key[0], *other) in first
    ]


def _id(span: Span) -> int:
    assert span.step is not None
    return span.step.id


def _us(moment: float, origin: float) -> float:
    return round(1e6 * (moment - origin), 3)
