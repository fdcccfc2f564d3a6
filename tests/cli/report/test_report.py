"""What a run prints at its end and while it goes on, and what its RUN.json holds."""

import io
import json
from datetime import datetime

import psutil
import pytest
from rich.console import Console

import gnndrive as gd
from gnndrive.cli.commands.split_batches import INTERVALS_MAX, RunRecord
from gnndrive.cli.report import (
    LiveLine,
    as_json,
    derived,
    final_report,
    peak_memory_bytes,
    run_envelope,
)
from gnndrive.cli.report.live import clock
from gnndrive.cli.report.text import si, typed

STATS = {
    "batches": 196, "rows": 12_345_678, "rows_hit": 5_580_246, "rows_waited": 382_716,
    "rows_loaded": 6_382_716, "requests": 4_200_000, "bytes_read": 34_000_000_000,
    "bytes_wanted": 3_267_950_592, "retries": 0, "sample_s": 12.34, "extract_s": 140.26,
    "gather_s": 3.1, "wait_s": 10.0, "elapsed_s": 65.25, "sampling": 4, "extracting": 6,
    "training": 2, "buffer_slots": 524_288, "buffer_bytes": 268_435_456, "engine": "uring",
}  # fmt: skip

GOLDEN = """\
train: 196 batches in 65.2 s (0.333 s each), engine=uring
  rows          : 12.3 M, 189 k/s; buffer hits 45.2 %, read for another batch 3.1 %, read 51.7 %
  reads         : IOPS=64.4 k, BW=521 MB/s, 4.2 M requests of 8.1 KB, 0 retries
  bytes         : 34 GB read, for batches with 3.27 GB of rows
  stages        : sample 12.3 s, extract 140.3 s, gather 3.1 s, of all threads together
  waiting       : 10.0 s for batches, 15.3 % of the time
  memory        : peak 851 MB, feature buffer 268 MB (524 k rows)
  test accuracy : 0.941"""


def test_the_final_report_as_text_and_as_json(monkeypatch):
    # the kernel updates the peak a little late
    assert peak_memory_bytes() >= 0.9 * psutil.Process().memory_info().rss
    monkeypatch.setattr("gnndrive.cli.report.text.peak_memory_bytes", lambda: 812 << 20)
    given = {"title": "train", "results": {"test accuracy": "0.941"}}
    assert final_report(STATS, **given) == GOLDEN
    assert final_report({}, **given).startswith("train: 0 batches in 0.0 s (0.000 s each)")
    assert set(derived({}).values()) == {0.0}
    # Rows of a second table are looked up too, and no node more is delivered.
    assert "hits 60.0 %, read for another batch 10.0 %, read 30.0 %" in final_report(
        {"rows": 100, "rows_hit": 120, "rows_waited": 20, "rows_loaded": 60}, **given
    )
    report = json.loads(as_json(STATS, accuracy={"test": 0.941}))
    assert (report["hit_rate"], report["wanted_rate"]) == pytest.approx((0.452, 0.0961), abs=1e-3)
    assert (report["peak_memory_bytes"], report["accuracy"]) == (812 << 20, {"test": 0.941})
    with pytest.raises(ValueError, match="JSON"):
        as_json(STATS, loss=float("nan"))


def test_numbers_and_rates():
    assert [si(each) for each in (0, 2.5, 999.6, 12_345, 1_052_000, 2e12)] == [
        "0", "2.5", "1 k", "12.3 k", "1.05 M", "2000 G",
    ]  # fmt: skip
    assert [clock(each) for each in (0, 61.4, 3_725)] == ["0:00", "1:01", "1:02:05"]
    line = LiveLine(100, console=Console(file=io.StringIO()))
    for batch in range(1, 41):
        line.update(batch, at(batch))
    slow = dict(at(40), elapsed_s=at(40)["elapsed_s"] + 5, rows=41_000)
    line.update(41, slow)
    assert " 200 rows/s" in line.line(41, slow)  # of the last seconds
    line = LiveLine(10, console=Console(file=io.StringIO()))
    ahead = at(2) | {"rows_hit": 3000, "rows_waited": 0, "rows_loaded": 1000}
    line.update(2, ahead)
    assert "buffer hits 75.0 %" in line.line(2, ahead)  # of the rows extracted


# ---- the live line


def at(batch: int) -> dict[str, float]:
    """Stats after `batch` batches of a steady run: half a second and 1,000 rows each."""
    return {
        "batches": batch, "elapsed_s": batch / 2, "rows": 1000 * batch, "rows_hit": 250 * batch,
        "rows_waited": 50 * batch, "rows_loaded": 700 * batch,
        "requests": 500 * batch, "bytes_read": (1 << 20) * batch,
        "sampling": 4, "extracting": 6, "training": 2,
    }  # fmt: skip


def test_without_a_terminal_every_nth_line_and_the_last_are_printed():
    out = io.StringIO()
    with LiveLine(25, label="epoch 1/3", every=10, later=2, console=Console(file=out)) as line:
        for batch in range(1, 26):
            line.update(batch, at(batch), loss=1 / batch)
    steady = (
        "2 k rows/s  2.1 MB/s read  buffer hits 25.0 %  1 k reads/s  "
        "batches: 4 sampling, 6 reading, 2 ready"
    )
    assert out.getvalue().splitlines() == [
        f"epoch 1/3  batch 10/25  loss 0.100  0:32 left  {steady}",
        f"epoch 1/3  batch 20/25  loss 0.050  0:28 left  {steady}",
        f"epoch 1/3  batch 25/25  loss 0.040  0:25 left  {steady}",
    ]
    given = {"label": "epoch 2/2", "since": at(100), "console": Console(file=out)}
    later = LiveLine(10, **given)
    later.update(5, at(105))
    assert later.line(5, at(105)) == f"epoch 2/2  batch 5/10  0:02 left  {steady}"
    long = LiveLine(10, after_s=3600, **given)
    long.update(5, at(105))
    fits = "epoch 2/2  batch 5/10  loss 0.125  1:00:02 left  2 k rows/s  2.1 MB/s read"
    assert long.line(5, at(105), 0.125, width=len(fits)) == fits
    assert long.line(5, at(105), 0.125, width=len(fits) - 1) == fits.removesuffix("  2.1 MB/s read")


def test_a_terminal_gets_one_line_that_is_drawn_over_itself():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=30)
    line = LiveLine(6, label="epoch 1/1", console=console)

    def draw():
        with line:
            line.update(6, at(6))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw()
    # erased and drawn again; the cursor is shown again
    for text in ("epoch 1/1  batch 6/6", "\x1b[2K", "\x1b[?25h", "…"):
        assert text in out.getvalue()
    assert out.getvalue().count("\n") <= 2


# ---- RUN.json


def test_the_envelope_says_what_ran_when_and_where():
    with typed(["plan", "my store"]):
        envelope = run_envelope("plan")
    assert (envelope["gnndrive"], envelope["kind"]) == (gd.__version__, "plan")
    assert envelope["command"] == "gnndrive plan 'my store'"
    assert datetime.fromisoformat(envelope["date"]).tzinfo is not None
    assert envelope["machine"]["memory_bytes"] > 1 << 20
    assert json.loads(json.dumps(envelope)) == envelope


def interval(number: int) -> dict[str, float]:
    return {
        "elapsed_s": number + 1.0, "interval_s": 1.0, "batches": 2.0, "batches_per_s": 2.0,
        "bytes_read": 100.0, "wait_disk_s": 0.25, "extracting_queue": float(number % 2),
        "read_s_p50": 0.1, "read_s_p99": 0.2,
    }  # fmt: skip


def test_intervals_of_loaders_follow_each_other_and_many_become_fewer():
    record = RunRecord()
    for earlier in (0.0, 60.0):
        tell = record.arguments(earlier)["on_stats"]
        tell(interval(0))
        tell(interval(1))
    assert [each["elapsed_s"] for each in record.intervals] == [1, 2, 61, 62]
    assert record.sections() == {"intervals": record.intervals}
    record, count = RunRecord(), 3 * INTERVALS_MAX
    tell = record.arguments(0.0)["on_stats"]
    for number in range(count):
        tell(interval(number))
    kept = record.intervals
    assert INTERVALS_MAX / 2 < len(kept) <= INTERVALS_MAX
    for name in ("interval_s", "batches", "bytes_read", "wait_disk_s"):
        assert sum(each[name] for each in kept) == count * interval(0)[name]
    ends = [each["elapsed_s"] for each in kept]
    assert (ends, ends[-1], kept[0]["extracting_queue"]) == (sorted(ends), count, 0.5)
    assert "read_s_p50" in kept[-1]
    assert not {"read_s_p50", "read_s_p99", "batches_per_s"} & set(kept[0])
