"""What a trace must be: valid events, lanes in which nothing overlaps, every step whole, causes before effects.

What flows in: a trace, as `json.load` returns it. What flows out: nothing, or an `AssertionError` that says what is
wrong.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

HOST = {"plan", "launch", "finalize", "commit", "admit", "deliver", "wait: device", "wait: mask", "wait: mail"}
LANES = {
    "loop thread": HOST,
    "compute stream": {"forward", "sampling"},
    "copy stream": {"copy"},
    "upload stream": {"upload"},
}
TICK = 0.002
"""Microseconds: times are rounded to a thousandth."""


def check_trace(trace: dict[str, Any], tick: float = TICK, clocks: float = TICK) -> dict[int, int]:
    """Returns the number of steps of each engine. `tick`: how exact the device's times are, `clocks`: how far its clock
    may be off the host's, both in microseconds."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    events = trace["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["pid"] for e in events} == {engine["pid"] for engine in trace["otherData"]["engines"]}
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == trace["otherData"]["spans"]
    for span in spans:
        assert span["dur"] >= 0 and span["ts"] >= 0
        assert span["name"] in LANES[lanes[span["pid"], span["tid"]]], span
    _check_no_overlap(spans, tick)
    steps = {
        engine["pid"]: _check_steps(spans, engine["pid"], tick, clocks) for engine in trace["otherData"]["engines"]
    }
    _check_arrows(events, lanes, clocks)
    return steps


def _check_no_overlap(spans: list[dict[str, Any]], tick: float) -> None:
    by_lane = defaultdict(list)
    for span in spans:
        by_lane[span["pid"], span["tid"]].append(span)
    for lane in by_lane.values():
        lane.sort(key=lambda span: (span["ts"], span["ts"] + span["dur"]))
        for before, after in pairwise(lane):
            assert before["ts"] + before["dur"] <= after["ts"] + tick, f"overlap: {before} {after}"


def _check_steps(spans: list[dict[str, Any]], pid: int, tick: float, clocks: float) -> int:
    steps: dict[int, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        if span["pid"] == pid and "args" in span:
            assert set(span["args"]) - {"zombies"} == {"step", "kind", "slot", "rows"}
            steps[span["args"]["step"]][span["name"]].append(span)
    for number, step in steps.items():
        _check_step(number, step, tick, clocks)
    forwards = sorted((n, s["forward"][0]["ts"]) for n, s in steps.items() if s["forward"])
    assert [ts for _, ts in forwards] == sorted(ts for _, ts in forwards), "I1: forwards out of launch order"
    commits = sorted((s["commit"][0]["ts"], n) for n, s in steps.items() if s["forward"] and s["commit"])
    assert [n for _, n in commits] == sorted(n for _, n in commits), "I2: commits out of order"
    return len(steps)


def _check_step(number: int, step: dict[str, list], tick: float, clocks: float) -> None:
    args = next(iter(step.values()))[0]["args"]
    parked = args["kind"] == "parked"
    assert args["rows"] and (parked or step["launch"]), f"step {number} was never launched"
    assert bool(step["forward"]) != parked, f"step {number} of kind {args['kind']}: {list(step)}"
    assert step["commit"], f"step {number} never came back: {list(step)}"
    assert step["copy"] or not step["sampling"], f"step {number} was sampled and not copied: {list(step)}"
    if not parked:
        assert step["launch"][0]["ts"] <= step["forward"][0]["ts"] + clocks, f"step {number} ran before its launch"
    for sampling, copy in zip(step["sampling"], step["copy"][-len(step["sampling"]) :], strict=False):
        assert sampling["ts"] + sampling["dur"] <= copy["ts"] + tick, f"step {number} was copied before it was sampled"
        for forward in step["forward"]:
            assert forward["ts"] + forward["dur"] <= sampling["ts"] + tick
    last = max((copy["ts"] + copy["dur"] for copy in step["copy"]), default=0.0)
    assert last <= step["commit"][0]["ts"] + clocks, f"step {number} was committed before its copy had landed"


def _check_arrows(events: list[dict[str, Any]], lanes: dict[tuple[int, int], str], clocks: float) -> None:
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and starts
    for name, start in starts.items():
        assert start["ts"] <= ends[name]["ts"] + clocks, f"an arrow leads back in time: {start}"
        assert lanes[start["pid"], start["tid"]] != lanes[ends[name]["pid"], ends[name]["tid"]]
