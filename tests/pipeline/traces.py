"""Reads trace files, and checks that they are what Chrome's trace format and Perfetto want."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gnndrive.pipeline.batch_times import STAGES

Event = dict[str, Any]
US = 0.01  # times are rounded to nanoseconds


class Span(NamedTuple):
    """A span of a stage or a copy, on a track: of its own name, or a thread's."""

    stage: str
    begin: float
    end: float
    track: str
    args: Any


def read(path: Path, end: bytes = b"") -> list[Event]:
    """The events of a file that was closed: whole JSON."""
    content = path.read_bytes()
    found = json.loads((gzip.decompress(content) if path.suffix == ".gz" else content) + end)
    assert isinstance(found, list)
    return found


def read_unfinished(path: Path) -> list[Event]:
    """The events of a file that was not closed, as Perfetto reads it: without the bracket."""
    return read(path, end=b"]")


def check(events: list[Event]) -> list[Span]:
    """Raise AssertionError unless each event has what its phase needs, each asynchronous begin has
    its end behind it, and spans of one thread do not overlap; returns the spans."""
    open_spans: dict[str, Event] = {}
    spans: list[Span] = []
    threads: dict[tuple[int, int], str] = {}
    slices: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)
    for event in events:
        if event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    for event in events:
        phase, name, thread = event["ph"], event["name"], (event["pid"], event["tid"])
        assert all(
            isinstance(each, kind)
            for each, kind in zip((*thread, name), (int, int, str), strict=True)
        )
        assert phase in "MbeXCi"
        if phase == "M":
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        stage = name.partition(" #")[0]
        if phase == "b":
            number = event["id2"]["local"]
            assert int(number, 16) > 0
            assert open_spans.setdefault(number, event) is event
        elif phase == "e":
            begin = open_spans.pop(event["id2"]["local"])
            assert begin["name"] == name
            assert begin["ts"] <= event["ts"]
            spans.append(Span(stage, begin["ts"], event["ts"], name, begin["args"]))
        elif phase == "X":
            assert event["dur"] >= 0
            end = event["ts"] + event["dur"]
            spans.append(Span(stage, event["ts"], end, threads[thread], event["args"]))
            slices[thread].append(spans[-1])
        elif phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    assert not open_spans
    for each in slices.values():
        assert all(one.end <= other.begin + US for one, other in pairwise(sorted(each)))
    return spans


def check_batches(events: list[Event]) -> dict[tuple[int, int, str], list[Span]]:
    """Raise AssertionError unless the spans of each batch are those of `STAGES`, touch, and add up
    to its latency; returns (epoch, batch, number of the iterator's tracks) → its spans."""
    found: defaultdict[tuple[int, int, str], list[Span]] = defaultdict(list)
    stages = [span for span in check(events) if span.stage in STAGES]
    for span in stages:
        if span.stage != "sample":  # workers have no tracks of one iterator
            lane = span.track.partition(" #")[2]
            found[span.args["epoch"], span.args["batch"], lane].append(span)
    for (epoch, batch, _), spans in found.items():
        spans.sort(key=lambda span: STAGES.index(span.stage))
        spans[1:1] = [
            each for each in stages
            if each.stage == "sample" and abs(spans[0].end - each.begin) < US
            and each.args == {"batch": batch, "epoch": epoch}
        ]  # fmt: skip
        assert tuple(span.stage for span in spans) == STAGES
        assert all(abs(one.end - other.begin) < US for one, other in pairwise(spans))
        total = sum(span.end - span.begin for span in spans)
        assert abs(total - (spans[-1].end - spans[0].begin)) < 1
    return found
