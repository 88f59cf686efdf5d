"""The rules of the Chrome trace format that a viewer needs, as a checker.

From the "Trace Event Format" document: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Event = dict[str, Any]

REQUIRED = {"name": str, "ph": str, "ts": int, "pid": int, "tid": int, "cat": str}
PHASES = {"X", "i", "s", "f", "M"}


def read(path: Path) -> list[Event]:
    """Read a trace as a viewer does, whose end is not written; check it line by line too."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith('[{"'), "a viewer tells the format by this"
    assert text.endswith("}\n"), "a line is torn"
    events: list[Event] = json.loads(text + "]")
    assert [json.loads(line[1:]) for line in text.splitlines()] == events, "a line is not an event"
    return events


def check(path: Path, loose: int = 0) -> list[Event]:
    """Check a whole trace; `loose` arrows may have one end only, where a process was killed between."""
    events = read(path)
    for event in events:
        _one(event)
    _lanes(events)
    _arrows(events, loose)
    return events


def _one(event: Event) -> None:
    for key, kind in REQUIRED.items():
        assert type(event.get(key)) is kind, (key, event)
    assert event["ph"] in PHASES, event
    assert 0 <= event["ts"] < 2**53, "a viewer reads numbers as doubles"
    if event["ph"] == "X":
        assert type(event.get("dur")) is int, event
        assert event["dur"] > 0, event
    if event["ph"] == "i":
        assert event["s"] in ("t", "p", "g"), event
    if event["ph"] in "sf":
        assert type(event["id"]) is int, event
        assert 0 <= event["id"] < 2**53, event


def _lanes(events: list[Event]) -> None:
    """Each process's first event names its lane."""
    seen: set[int] = set()
    for event in events:
        assert event["pid"] in seen or (event["ph"], event["name"]) == ("M", "process_name"), event
        seen.add(event["pid"])


def _arrows(events: list[Event], loose: int) -> None:
    """Each arrow has one beginning and one end, later and in another process, both inside a slice of their lane."""
    begins, ends = ([event for event in events if event["ph"] == phase] for phase in "sf")
    for side in (begins, ends):
        assert max(Counter(event["id"] for event in side).values(), default=1) == 1, "two arrows of one id"
        assert all(_in_slice(event, events) for event in side), side
    assert all(event["bp"] == "e" for event in ends), "else it binds to the next slice"
    begun = {event["id"]: event for event in begins}
    assert len(set(begun) ^ {event["id"] for event in ends}) <= loose
    for end in ends:
        begin = begun[end["id"]]
        assert begin["ts"] < end["ts"], (begin, end)
        assert begin["pid"] != end["pid"], (begin, end)
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"]), "viewers match these too"


def _in_slice(arrow: Event, events: list[Event]) -> bool:
    lane = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == (arrow["pid"], arrow["tid"])]
    return any(event["ts"] <= arrow["ts"] <= event["ts"] + event["dur"] for event in lane)


def lanes(events: list[Event]) -> dict[int, str]:
    """The name of each process; a later one counts."""
    return {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}


def named(events: list[Event], name: str) -> list[Event]:
    """The events of a name."""
    return [event for event in events if event["name"] == name]
