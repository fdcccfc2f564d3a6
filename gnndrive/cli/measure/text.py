"""Reports in fio's form: as text, and as JSON with fio's keys, which fio's readers can parse.

Units of the JSON are fio's: `bw` is in KiB/s, `runtime` in milliseconds, `usr_cpu` in per cent of
one core. CPU time is that of the whole process, Python included. Jobs are reported together, as
with `--group_reporting`.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from gnndrive.cli.measure.calibrate import medians, misfit
from gnndrive.cli.measure.drive import Driven
from gnndrive.cli.measure.latency import PERCENTILES, Histogram, Latency
from gnndrive.cli.measure.raw import IoOptions
from gnndrive.cli.measure.rows import RowsResult
from gnndrive.cli.report.text import si
from gnndrive.common.memory import format_size
from gnndrive.common.records import DiskCost

_UP_TO = {
    "latency_ns": (1, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)),
    "latency_us": (1000, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)),
    "latency_ms": (1000_000, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000)),
}


# ---- fio's text


def io_report(options: IoOptions, driven: Driven) -> str:
    """Report raw reads as fio does."""
    head = (
        f"gnndrive: (g=0): rw={options.rw}, bs={options.bs}, "
        f"ioengine={options.ioengine}, iodepth={options.iodepth}, numjobs={options.numjobs}, "
        f"direct={int(options.direct)}"
    )
    return "\n".join([head, f"gnndrive-{version('gnndrive')}", *_read_lines(driven)])


def _read_lines(driven: Driven) -> list[str]:
    seconds, latency = driven.runtime_s, driven.latency
    speed = driven.nbytes / seconds
    lines = [
        f"  read: IOPS={si(driven.iops)}, BW={format_size(speed)}/s "
        f"({format_size(driven.nbytes)}/{seconds * 1000:.0f}msec)"
    ]
    named = (("    slat", latency.slat), ("    clat", latency.clat), ("     lat", latency.lat))
    lines += [_latency_line(name, times) for name, times in named if times.count]
    name, times = ("clat", latency.clat) if latency.clat.count else ("lat", latency.lat)
    if times.count:
        lines += _percentile_lines(name, times)
    lines.append(
        f"  cpu          : usr={driven.usr_cpu:.2f}%, "
        f"sys={driven.sys_cpu:.2f}%, ctx={driven.ctx}, majf={driven.majf}, "
        f"minf={driven.minf}"
    )
    return lines


def _unit(least_ns: float, most_ns: float) -> tuple[str, float]:
    """The unit in which both ends are readable, and its length in nanoseconds."""
    if least_ns > 2e6 and most_ns > 99_999e3:
        return "msec", 1e6
    return ("usec", 1e3) if least_ns > 2e3 or most_ns > 99_999 else ("nsec", 1.0)


def _latency_line(name: str, times: Histogram) -> str:
    unit, scale = _unit(times.min_ns, times.max_ns)
    return (
        f"{name} ({unit}): min={times.min_ns / scale:.0f}, max={times.max_ns / scale:.0f}, "
        f"avg={times.mean_ns / scale:.2f}, stdev={times.stddev_ns / scale:.2f}"
    )


def _percentile_lines(name: str, times: Histogram) -> list[str]:
    unit, scale = _unit(times.min_ns, times.max_ns)
    shown = [f"{p:5.2f}th=[{times.percentile_ns(p) / scale:5.0f}]" for p in PERCENTILES]
    rows = [shown[start : start + 4] for start in range(0, len(shown), 4)]
    return [f"    {name} percentiles ({unit}):", *(f"     | {', '.join(row)}" for row in rows)]


# ---- fio's JSON


def io_json(options: IoOptions, driven: Driven) -> dict[str, Any]:
    """Report raw reads in the form of fio's JSON; figures that do not apply are 0."""
    now = time.time()
    words = {name: str(value) for name, value in options.words().items() if value is not None}
    nothing = _section(0, 0, 0.0, Latency())
    job = {
        "jobname": "gnndrive",
        "groupid": 0,
        "error": 0,
        "eta": 0,
        "elapsed": round(driven.runtime_s),
        "job options": words,
        "read": _section(driven.requests, driven.nbytes, driven.runtime_s, driven.latency),
        "write": nothing,
        "trim": nothing,
        "job_runtime": round(driven.runtime_s * 1000),
        "usr_cpu": driven.usr_cpu,
        "sys_cpu": driven.sys_cpu,
        "ctx": driven.ctx,
        "majf": driven.majf,
        "minf": driven.minf,
        **_distribution(driven.latency.lat),
        "latency_depth": options.iodepth,
    }
    return {
        "fio version": f"gnndrive-{version('gnndrive')}",
        "timestamp": int(now),
        "timestamp_ms": int(now * 1000),
        "time": time.ctime(now),
        "global options": {},
        "jobs": [job],
    }


def _section(requests: int, nbytes: int, seconds: float, latency: Latency) -> dict[str, Any]:
    speed = nbytes / seconds if seconds else 0.0
    return {
        "io_bytes": nbytes,
        "io_kbytes": nbytes >> 10,
        "bw_bytes": round(speed),
        "bw": round(speed) >> 10,
        "iops": requests / seconds if seconds else 0.0,
        "runtime": round(seconds * 1000),
        "total_ios": requests,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": _times(latency.slat),
        "clat_ns": _times(latency.clat, percentiles=True),
        "lat_ns": _times(latency.lat),
    }


def _times(times: Histogram, percentiles: bool = False) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "min": times.min_ns,
        "max": times.max_ns,
        "mean": times.mean_ns,
        "stddev": times.stddev_ns,
        "N": times.count,
    }
    if percentiles and times.count:
        figures["percentile"] = {f"{p:.6f}": times.percentile_ns(p) for p in PERCENTILES}
    return figures


def _distribution(times: Histogram) -> dict[str, dict[str, float]]:
    """Per cent of the latencies between each of fio's bounds and the bound before it."""
    shares: dict[str, dict[str, float]] = {}
    below = 0.0
    for name, (scale, bounds) in _UP_TO.items():
        shares[name] = {}
        for bound in bounds:
            share = 100 * times.share_below(bound * scale)
            shares[name][str(bound)] = share - below
            below = share
    shares["latency_ms"][">=2000"] = (100 - below) if times.count else 0.0
    return shares


# ---- rows, the calibration


def rows_report(result: RowsResult) -> str:
    """Report reads of rows, beside what one request per row would need."""
    driven = result.driven
    speed, of_rows = driven.nbytes / driven.runtime_s, driven.rows * result.row_bytes
    lines = [
        f"gnndrive: {driven.rows:,} rows of {result.row_bytes:,} bytes in {driven.runtime_s:.2f} s:"
        f" {si(result.rows_per_s)} rows/s",
        f"  read      : IOPS={si(driven.iops)}, BW={format_size(speed)}/s; "
        f"{format_size(driven.nbytes / max(driven.requests, 1))} a request",
        f"  requests  : {driven.requests:,}, {driven.rows / max(driven.requests, 1):.2f} rows each "
        "(one request a row: 1.00)",
        f"  bytes     : {driven.nbytes / max(of_rows, 1):.2f} read for each byte of a row; gaps of "
        f"up to {result.gap_bytes:,} bytes were read over",
        f"  cpu       : usr={driven.usr_cpu:.2f}%, sys={driven.sys_cpu:.2f}%",
    ]
    if result.predicted_s is not None:
        share = result.predicted_s / driven.runtime_s
        lines.append(
            f"  predicted : {result.predicted_s:.2f} s by the calibration; {share:.2f} of its speed"
        )
    return "\n".join(lines)


def rows_json(result: RowsResult) -> dict[str, Any]:
    """Report the same figures as a mapping, for JSON."""
    driven = result.driven
    return {
        "rows": driven.rows,
        "row_bytes": result.row_bytes,
        "requests": driven.requests,
        "bytes_read": driven.nbytes,
        "runtime_s": driven.runtime_s,
        "rows_per_s": result.rows_per_s,
        "iops": driven.iops,
        "rows_per_request": driven.rows / max(driven.requests, 1),
        "gap_bytes": result.gap_bytes,
        "predicted_s": result.predicted_s,
        "usr_cpu": driven.usr_cpu,
        "sys_cpu": driven.sys_cpu,
    }


def costs(cost: DiskCost) -> str:
    """Describe a calibration in one line."""
    written = "" if cost.write_byte_s is None else f", {_bytes(cost.write_byte_s)} written"
    return (
        f"{cost.request_s * 1e6:.2f} µs a request and {_bytes(cost.byte_s)} at "
        f"depth {cost.depth}, within {100 * misfit(cost):.0f} %{written}, {cost.engine}, "
        f"{cost.date[:10]}"
    )


def _bytes(byte_s: float) -> str:
    speed = f" ({format_size(1 / byte_s)}/s)" if byte_s else ""
    return f"{byte_s * 1e9:.3f} ns a byte{speed}"


def points_report(cost: DiskCost) -> str:
    """Report the measured times, one line per size, beside those by the two constants."""
    lines = []
    for size, seconds in medians(cost.points):
        each = [t for nbytes, t in cost.points if nbytes == size]
        lines.append(
            f"  {size:>7,} bytes: {seconds * 1e6:6.2f} µs a read ({min(each) * 1e6:.2f} to "
            f"{max(each) * 1e6:.2f}), {si(1 / seconds)} IOPS, {format_size(size / seconds)}/s; "
            f"by the two figures {cost.seconds(1, size) * 1e6:.2f} µs"
        )
    return "\n".join(lines)
