"""Reads trace files, and checks that they are what Chrome's trace format and Perfetto want."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from gnndrive.pipeline.batch_times import STAGES

Event = dict[str, Any]
US = 0.01  # times are rounded to nanoseconds


def read(path: Path, end: bytes = b"") -> list[Event]:
    """The events of a file that was closed: whole JSON."""
    content = path.read_bytes()
    found = json.loads((gzip.decompress(content) if path.suffix == ".gz" else content) + end)
    assert isinstance(found, list)
    return found


def read_unfinished(path: Path) -> list[Event]:
    """The events of a file that was not closed, as Perfetto reads it: without the bracket."""
    return read(path, end=b"]")


def check(events: list[Event]) -> None:
    """Raise AssertionError unless each event has what its phase needs, each asynchronous begin has
    its end behind it, and spans of one thread do not overlap."""
    open_spans: dict[str, Event] = {}
    slices: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        kinds = {"pid": int, "tid": int, "name": str}
        assert all(isinstance(event[name], kind) for name, kind in kinds.items())
        phase = event["ph"]
        assert phase in "MbeXCi"
        if phase == "M":
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        if phase == "b":
            number = event["id2"]["local"]
            assert int(number, 16) > 0
            assert open_spans.setdefault(number, event) is event
        elif phase == "e":
            begin = open_spans.pop(event["id2"]["local"])
            assert begin["name"] == event["name"]
            assert begin["ts"] <= event["ts"]
        elif phase == "X":
            assert (event["pid"], event["tid"]) in named
            assert event["dur"] >= 0
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    assert not open_spans
    for spans in slices.values():
        spans.sort()
        assert all(one[1] <= other[0] + US for one, other in pairwise(spans))


def batches(events: list[Event]) -> dict[tuple[int, int, str], list[tuple[str, float, float]]]:
    """(epoch, batch, number of the iterator's tracks) → its spans in order: stage, begin, end."""
    found: defaultdict[tuple[int, int, str], list[tuple[str, float, float]]] = defaultdict(list)
    begins: dict[str, Event] = {}
    threads = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    samples = []
    for event in events:
        if event["ph"] == "X" and event["name"] == "sample":
            samples.append(event)
            continue
        if event["ph"] == "b":
            begins[event["id2"]["local"]] = event
        if event["ph"] not in "eX" or not event["name"].startswith(STAGES):
            continue
        begin = begins[event["id2"]["local"]] if event["ph"] == "e" else event
        end = event["ts"] + event.get("dur", 0)
        track = event["name"] if event["ph"] == "e" else threads[event["tid"]]
        args, lane = begin["args"], track.partition(" #")[2]
        span = event["name"].partition(" #")[0], begin["ts"], end
        found[args["epoch"], args["batch"], lane].append(span)
    for event in samples:  # workers have no tracks of one iterator
        args, end = event["args"], event["ts"] + event["dur"]
        for (epoch, batch, _), spans in found.items():
            waited = next(each for each in spans if each[0] == "sampler_wait")
            same = (epoch, batch) == (args["epoch"], args["batch"])
            if same and abs(waited[2] - event["ts"]) < US:
                spans.append(("sample", event["ts"], end))
    for spans in found.values():
        spans.sort(key=lambda span: STAGES.index(span[0]))
    return found


def check_batches(events: list[Event]) -> dict[tuple[int, int, str], Any]:
    """Raise AssertionError unless the spans of each batch are those of `STAGES`, touch, and add up
    to its latency; returns `batches`."""
    check(events)
    found = batches(events)
    for spans in found.values():
        assert tuple(stage for stage, _, _ in spans) == STAGES
        for (_, _, end), (_, begin, _) in pairwise(spans):
            assert abs(end - begin) < US
        total = sum(end - begin for _, begin, end in spans)
        assert abs(total - (spans[-1][2] - spans[0][1])) < 1
    return found
