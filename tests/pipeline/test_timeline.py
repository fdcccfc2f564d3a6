"""The timeline's file: what is in it, and what is left of it if writing it is cut short."""

import errno
import os
import threading
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.pipeline import timeline as timelines
from gnndrive.pipeline.batch_times import EpochTimes, StageTimes
from gnndrive.pipeline.timeline import PID_BASE, Timeline, trace_base_ns
from tests.interrupted import interrupted
from tests.pipeline.test_batch_times import Ticking, take_one
from tests.pipeline.traces import check, check_batches, read, read_unfinished

UNIX_NS = 1_795_541_045_469_226_437
BASE_NS = 1_790_857_026_000_000_000  # what torch 2.13 wrote then


@pytest.fixture(autouse=True)
def from_unix_ns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock began at `UNIX_NS`; only the test writes."""
    monkeypatch.setattr(timelines, "time_ns", lambda: UNIX_NS)
    monkeypatch.setattr(timelines, "perf_counter_ns", Ticking())
    monkeypatch.setattr(timelines, "WRITE_EVERY_S", threading.TIMEOUT_MAX)


def run_batches(timeline: Timeline, count: int, epoch: int = 0) -> EpochTimes:
    """An iterator that takes some batches."""
    times = EpochTimes(StageTimes(timeline.clock), timeline, epoch)
    for index in range(count):
        times.asked()
        take_one(times, index).worker = f"gnndrive-worker-{index % 3}"
    return times


def test_iterators_at_once_have_tracks_of_their_own(tmp_path):
    timeline = Timeline(tmp_path / "trace.json")
    one, other = run_batches(timeline, 2), run_batches(timeline, 3, epoch=1)
    one.end()
    one.end()
    run_batches(timeline, 1, epoch=2).end()  # has the tracks of the first one
    other.end()
    timeline.close()
    found = check_batches(read(tmp_path / "trace.json"))
    assert sorted(found) == [
        (0, 0, ""), (0, 1, ""), (1, 0, "2"), (1, 1, "2"), (1, 2, "2"), (2, 0, ""),
    ]  # fmt: skip


def test_times_are_those_of_torchs_traces(tmp_path):
    assert trace_base_ns(UNIX_NS) == BASE_NS
    timeline = Timeline(tmp_path / "trace.json")
    first = timeline.clock()
    timeline.counter(first, "one", 1)
    timeline.close()
    events = read(tmp_path / "trace.json")
    (base,) = [event for event in events if event["name"] == "trace_base"]
    assert base["args"] == {"baseTimeNanoseconds": BASE_NS}
    (counter,) = [event for event in events if event["ph"] == "C"]
    unix_ns = BASE_NS + counter["ts"] * 1_000
    assert 0 <= unix_ns - UNIX_NS < 10_000


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_was_written_can_be_read_before_the_end(tmp_path, name):
    """As it is left by a process that was killed."""
    path = tmp_path / name
    timeline = Timeline(path)
    times = run_batches(timeline, 3)
    timeline.flush()
    assert len(check_batches(read_unfinished(path))) == 2
    times.end()
    run_batches(timeline, 2, epoch=1).end()
    timeline.counter(timeline.clock(), "reads in flight", 5)
    timeline.copied(128, 10, timeline.clock())
    timeline.flush()
    assert len(check_batches(read_unfinished(path))) == 5
    timeline.close()
    events = read(path)
    assert len(check_batches(events)) == 5
    (counter,) = [event for event in events if event["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("reads in flight", {"value": 5})
    (copy,) = [each for each in events if each["ph"] == "b" and each["name"].startswith("copy")]
    assert copy["args"] == {"rows": 10, "bytes": 1_280}


def test_a_thread_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "WRITE_EVERY_S", 0.001)
    path = tmp_path / "trace.json"
    timeline = Timeline(path)
    size = path.stat().st_size
    timeline.counter(timeline.clock(), "one", 1)
    while path.stat().st_size == size:
        os.sched_yield()
    timeline.close()
    check(read(path))


# ---- what goes wrong


@pytest.mark.parametrize(
    ("name", "written", "as_errors"),
    [("trace.json", 7, False), ("trace.json.gz", 0, False), ("trace.json", 0, True)],
)
def test_a_full_disk_ends_the_timeline_with_one_warning(
    tmp_path, monkeypatch, capsys, name, written, as_errors
):
    """No thread ends because warnings are errors: they are printed."""
    path = tmp_path / name
    timeline = Timeline(path)
    run_batches(timeline, 2).end()
    timeline.flush()
    left, write = [written, 0], os.write

    def full(fd: int, content: Any) -> int:
        if not left or not (room := left.pop(0)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, content[:room])

    monkeypatch.setattr(timelines.os, "write", full)
    run_batches(timeline, 5, epoch=1).end()
    says = "No space left on device: the timeline ends here"
    with nullcontext() if as_errors else pytest.warns(UserWarning, match=says):
        timeline.flush()
    run_batches(timeline, 5, epoch=2).end()
    timeline.flush()
    assert not timeline._events
    timeline.close()
    assert capsys.readouterr().err.count(says) == as_errors
    monkeypatch.undo()
    assert sorted(check_batches(read_unfinished(path))) == [(0, 0, ""), (0, 1, "")]


def test_events_that_are_not_written_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "EVENTS_MAX", 10)
    timeline = Timeline(tmp_path / "trace.json")
    for value in range(25):
        timeline.counter(timeline.clock(), "one", value)
    assert len(timeline._events) == 10
    timeline.close()
    timeline.counter(0, "one", 1)
    assert not timeline._events, "nothing is kept after the end"
    events = read(tmp_path / "trace.json")
    check(events)
    (said,) = [event["name"] for event in events if event["ph"] == "i"]
    assert said.startswith("15 events were dropped")


@pytest.mark.parametrize("count", [3, 10])
def test_events_that_had_to_wait_are_written_a_few_at_a_time(tmp_path, monkeypatch, count):
    monkeypatch.setattr(timelines, "EVENTS_AT_ONCE", 3)
    timeline = Timeline(tmp_path / "trace.json")
    run_batches(timeline, count).end()
    writes = Mock(wraps=os.write)
    with monkeypatch.context() as patch:
        patch.setattr(timelines.os, "write", writes)
        timeline.flush()
    written = [bytes(call.args[1]).count(b'"name": "step"') for call in writes.call_args_list]
    assert written == [3] * (count // 3) + [count % 3] * (count % 3 > 0)
    timeline.close()
    assert len(check_batches(read(tmp_path / "trace.json"))) == count


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    for path in (tmp_path / "none" / "trace.json", tmp_path):
        with pytest.raises(ConfigError, match=r"trace='.*cannot be written .*give a file in a"):
            Timeline(path)
    Timeline(tmp_path / "trace.json").close()


def test_a_file_is_written_by_one_timeline_at_a_time(tmp_path):
    path = tmp_path / "trace.json"
    link = tmp_path / "link.json"
    link.symlink_to(path)
    timeline = Timeline(path)
    for same in (path, link):
        with pytest.raises(ConfigError, match=r"is being written by another loader: close that"):
            Timeline(same)
    timeline.close()
    run_batches(again := Timeline(path), 1).end()
    again.close()
    assert len(check_batches(read(path))) == 1, "a file is replaced"


def test_a_shared_timeline_is_closed_by_the_last_loader(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(path, rank=3)
    other = timeline.share()
    timeline.close()
    run_batches(other, 1).end()
    other.close()
    events = read(path)
    assert len(check_batches(events)) == 1
    assert {event["pid"] for event in events} == {PID_BASE + 3}


def test_a_close_that_was_interrupted_is_finished_by_the_next_one(tmp_path):
    path = tmp_path / "trace.json"
    timeline = Timeline(path)
    run_batches(timeline, 2).end()
    thread: Any = Mock()
    thread.join.side_effect = [KeyboardInterrupt, None, None]
    timeline._thread = thread
    with pytest.raises(KeyboardInterrupt):
        timeline.close()
    timeline.close()
    timeline.close()
    assert thread.join.call_count == 3
    assert len(check_batches(read(path))) == 2
    Timeline(path).close()  # the path is free


def test_an_interrupt_at_any_point_of_telling_the_thread_to_end_leaves_close_to_call(tmp_path):
    for number in range(12):
        timeline = Timeline(tmp_path / f"{number}.json")
        assert interrupted(timeline.close, number, "/timeline.py", "/threading.py"), number
        again = threading.Thread(target=timeline.close, daemon=True)
        again.start()
        again.join(60)
        assert not again.is_alive(), f"it waits for ever after an interrupt at {number}"


@pytest.mark.parametrize("written", [0, 1])
def test_an_interrupt_while_the_end_is_written_frees_the_file(tmp_path, monkeypatch, written):
    path, write = tmp_path / "trace.json", os.write
    timeline = Timeline(path)
    run_batches(timeline, 2).end()
    left = [write] * written

    def torn(fd: int, content: Any) -> int:
        if not left:
            raise KeyboardInterrupt
        return left.pop()(fd, content)

    monkeypatch.setattr(timelines.os, "write", torn)
    with pytest.raises(KeyboardInterrupt):
        timeline.close()
    monkeypatch.undo()
    size = path.stat().st_size
    timeline.close()
    assert path.stat().st_size == size, "nothing is written to a number that may be another file's"
    Timeline(path).close()
