"""Run fio with the options of a gnndrive run, in turn with it, and parse its JSON.

They alternate so that other load on the machine slows both. fio runs with --readonly, so neither of
them writes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from gnndrive.cli.measure.raw import IoOptions
from gnndrive.cli.report.text import si
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.disk.engines.threads import THREADS_MAX


@dataclass(frozen=True, slots=True)
class FioResult:
    """What fio measured; CPU in per cent of one core, a latency is 0 if fio does not report it."""

    version: str
    iops: float
    bw_bytes: float
    usr_cpu: float
    sys_cpu: float
    lat_ns_mean: float
    clat_ns_p99: float


def require_fio() -> str:
    """The path of fio; a ConfigError if it is not installed."""
    found = shutil.which("fio")
    if found is None:
        raise ConfigError(
            "fio is not installed, so gnndrive cannot be compared with it: apt install fio, or "
            "leave out --against-fio"
        )
    return found


def fio_command(fio: str, options: IoOptions) -> list[str]:
    """The command line with which fio reads what `raw.run(options)` reads.

    The counterpart of the threads engine is psync with one job per thread.
    """
    jobs, depth, engine = options.numjobs, options.iodepth, "io_uring"
    if options.ioengine == "threads":
        jobs, depth, engine = jobs * min(depth, THREADS_MAX), 1, "psync"
    words = options.words() | {
        "filename": options.filename.replace(":", "\\:"),
        "iodepth": depth,
        "numjobs": jobs,
        "ioengine": engine,
        "number_ios": options.reads,
        "runtime": options.runtime_s and f"{round(options.runtime_s * 1000)}ms",
        "time_based": 1 if options.runtime_s else None,
        "disable_slat": None if options.slat else 1,
        "output-format": "json",
    }
    flags = ["--readonly", "--thread", "--group_reporting", "--norandommap"]
    given = [f"--{name}={value}" for name, value in words.items() if value is not None]
    return [fio, *flags, *given]


def run_fio(options: IoOptions) -> FioResult:
    """Run fio once; a GNNDriveError that quotes its first line if it failed."""
    command = fio_command(require_fio(), options)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        printed = (ended.stderr.strip() or ended.stdout.strip() or "nothing").splitlines()
        raise GNNDriveError(f"fio ended with code {ended.returncode} and printed: {printed[0]}")
    return parse_fio(ended.stdout)


def parse_fio(text: str) -> FioResult:
    """Parse what `fio --output-format=json --group_reporting` prints, notes before the JSON too."""
    try:
        content: dict[str, Any] = json.loads(text[text.index("{") :])
        job = content["jobs"][0]
        read = job["read"]
        percentiles = read.get("clat_ns", {}).get("percentile", {})
        return FioResult(
            version=str(content["fio version"]),
            iops=float(read["iops"]),
            bw_bytes=float(read["bw_bytes"]),
            usr_cpu=float(job["usr_cpu"]),
            sys_cpu=float(job["sys_cpu"]),
            lat_ns_mean=float(read.get("lat_ns", {}).get("mean", 0)),
            clat_ns_p99=float(percentiles.get("99.000000", 0)),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise GNNDriveError(
            f"fio printed no report that can be read ({type(error).__name__}: {error}): "
            "run it by hand with --output-format=json"
        ) from error


Result = TypeVar("Result")


def in_turn(
    run_gnndrive: Callable[[], Result], run_fio: Callable[[], FioResult], runs: int
) -> tuple[list[Result], list[FioResult]]:
    """Run both `runs` times, one after the other; which one runs first alternates."""
    results: list[Result] = []
    fios: list[FioResult] = []
    for number in range(runs):
        if number % 2:
            fios.append(run_fio())
        results.append(run_gnndrive())
        if not number % 2:
            fios.append(run_fio())
    return results, fios


def against(
    what: str, figures: Sequence[float], fios: Sequence[FioResult]
) -> tuple[dict[str, Any], str]:
    """Compare the figure `what` of each gnndrive run with the IOPS of the fio run beside it: for
    JSON, and as text with a line for each run, then medians and ranges."""
    version, theirs = fios[0].version, [one.iops for one in fios]
    each = [mine / their for mine, their in zip(figures, theirs, strict=True)]
    ours, fio, ratio = _spread(figures), _spread(theirs), _spread(each)
    lines = [
        f"run {number}: {si(mine)} {what} beside {version}'s {si(their)} IOPS: {mine / their:.3f}"
        for number, (mine, their) in enumerate(zip(figures, theirs, strict=True), 1)
    ]

    def shown(figure: dict[str, float]) -> str:
        return f"{si(figure['median'])} ({si(figure['least'])} to {si(figure['most'])})"

    lines.append(
        f"median of {len(figures)} in turn: {shown(ours)} {what} beside {shown(fio)} IOPS: ratio "
        f"{ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})"
    )
    runs = [{"ours": mine, "fio": asdict(their)} for mine, their in zip(figures, fios, strict=True)]
    content = {"what": what, "fio version": version, "ours": ours, "fio": fio, "ratio": ratio}
    return content | {"runs": runs}, "\n".join(lines)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}
