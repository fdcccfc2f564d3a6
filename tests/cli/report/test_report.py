"""The final report against a golden text; the live line with and without a terminal."""

import io
import json
from collections.abc import Iterable

import psutil
import pytest
from rich.console import Console

from gnndrive.cli.report import LiveLine, as_json, derived, final_report, peak_memory_bytes
from gnndrive.cli.report.live import clock
from gnndrive.cli.report.text import mib, si

STATS = {
    "batches": 196, "rows": 12_345_678, "rows_hit": 5_580_246, "rows_waited": 382_716,
    "rows_loaded": 6_382_716, "requests": 4_200_000, "bytes_read": 34_000_000_000,
    "bytes_wanted": 3_267_950_592, "retries": 0, "sample_s": 12.34, "extract_s": 140.26,
    "gather_s": 3.1, "wait_s": 10.0, "elapsed_s": 65.25, "sampling": 4, "extracting": 6,
    "training": 2, "buffer_slots": 524_288, "buffer_bytes": 268_435_456, "engine": "uring",
}  # fmt: skip

GOLDEN = """\
train: 196 batches in 65.2 s (0.333 s each), engine=uring
  rows          : 12.3 M, 189 k/s; hit 45.2 %, shared 3.1 %, loaded 51.7 %
  reads         : IOPS=64.4 k, BW=496.9 MiB/s, 4.2 M requests of 7.9 KiB, 0 retries
  bytes         : 31.7 GiB read, 3.0 GiB wanted (9.6 %)
  stages        : sample 12.3 s, extract 140.3 s, gather 3.1 s, summed over workers
  waiting       : 10.0 s for batches, 15.3 % of the time
  memory        : peak 812.0 MiB, feature buffer 256.0 MiB (524 k slots)
  test accuracy : 0.941"""


def test_final_report_is_the_golden_text():
    text = final_report(
        STATS, title="train", results={"test accuracy": "0.941"}, peak_memory=812 << 20
    )
    assert text == GOLDEN


def test_a_report_of_empty_stats_divides_by_no_zero():
    text = final_report({}, peak_memory=1 << 20)
    assert text.startswith("gnndrive: 0 batches in 0.0 s (0.000 s each), engine=none")
    assert set(derived({}).values()) == {0.0}


def test_json_holds_counters_rates_and_extras():
    report = json.loads(as_json(STATS, peak_memory=7, accuracy={"test": 0.941}))
    assert report["rows"] == STATS["rows"]
    assert report["hit_rate"] == pytest.approx(0.452, abs=1e-3)
    assert report["wanted_rate"] == pytest.approx(0.0961, abs=1e-4)
    assert report["peak_memory_bytes"] == 7
    assert report["accuracy"] == {"test": 0.941}
    with pytest.raises(ValueError, match="JSON"):
        as_json(STATS, loss=float("nan"))


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (si, {0: "0", 2.5: "2.5", 950: "950", 999.6: "1.0 k", 12_345: "12.3 k", 2e12: "2000 G"}),
        (mib, {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1048575: "1.0 MiB", 5 << 29: "2.5 GiB"}),
        (clock, {0: "0:00", 61.4: "1:01", 3_725: "1:02:05"}),
    ],
)
def test_numbers(write, texts):
    assert {number: write(number) for number in texts} == texts


def test_peak_memory_is_at_least_the_memory_held_now():
    peak = peak_memory_bytes()
    held = psutil.Process().memory_info().rss
    assert peak >= 0.9 * held  # the kernel updates the peak a little late
    assert peak_memory_bytes() >= peak


def at(batch: int) -> dict[str, float]:
    """Stats after `batch` batches of a steady run: half a second and 1,000 rows each."""
    return {
        "batches": batch, "elapsed_s": batch / 2, "rows": 1000 * batch, "rows_hit": 250 * batch,
        "rows_waited": 50 * batch, "rows_loaded": 700 * batch,
        "requests": 500 * batch, "bytes_read": (1 << 20) * batch,
        "sampling": 4, "extracting": 6, "training": 2,
    }  # fmt: skip


def drawn(line: LiveLine, batches: Iterable[int]) -> None:
    with line:
        for batch in batches:
            line.update(batch, at(batch), loss=1 / batch)


def test_without_a_terminal_every_nth_line_and_the_last_are_printed():
    out = io.StringIO()
    drawn(LiveLine(25, label="epoch 1/3", every=10, console=Console(file=out)), range(1, 26))
    lines = out.getvalue().splitlines()
    steady = "s4 x6 t2  2.0 k rows/s  1.0 k IOPS  2.0 MiB/s  hit 25.0 %"
    assert lines == [
        f"epoch 1/3 10/25  {steady}  loss 0.100  ETA 0:08",
        f"epoch 1/3 20/25  {steady}  loss 0.050  ETA 0:02",
        f"epoch 1/3 25/25  {steady}  loss 0.040  ETA 0:00",
    ]


def test_a_terminal_gets_one_line_that_is_drawn_over_itself():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)

    def batches():
        yield from range(1, 7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drawn(LiveLine(6, label="epoch 1/1", console=console), batches())
    assert out.getvalue().count("epoch 1/1 6/6") >= 1
    assert "\x1b[2K" in out.getvalue()  # erased and drawn again
    assert out.getvalue().count("\n") <= 2
    assert "\x1b[?25h" in out.getvalue()  # the cursor is shown again
    narrow = io.StringIO()
    drawn(LiveLine(2, console=Console(file=narrow, force_terminal=True, width=30)), range(1, 3))
    assert "…" in narrow.getvalue()


def test_rates_are_averages_of_the_last_seconds():
    line = LiveLine(100, console=Console(file=io.StringIO()))
    for batch in range(1, 41):
        line.update(batch, at(batch))
    slow = dict(at(40), elapsed_s=at(40)["elapsed_s"] + 5, rows=41_000)
    line.update(41, slow)
    assert " 200 rows/s" in line.line(41, slow)


def test_hits_are_a_share_of_the_rows_extracted_not_of_those_delivered():
    line = LiveLine(10, console=Console(file=io.StringIO()))
    ahead = at(2) | {"rows_hit": 3000, "rows_waited": 0, "rows_loaded": 1000}
    line.update(2, ahead)
    assert "hit 75.0 %" in line.line(2, ahead)


def test_a_later_epoch_counts_from_its_own_start():
    line = LiveLine(10, label="epoch 2/2", since=at(100), console=Console(file=io.StringIO()))
    line.update(5, at(105))
    assert line.line(5, at(105)) == (
        "epoch 2/2 5/10  s4 x6 t2  2.0 k rows/s  1.0 k IOPS  2.0 MiB/s  hit 25.0 %  ETA 0:02"
    )
