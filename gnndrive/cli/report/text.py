"""What a run prints: a report as aligned text in the style of fio, or a RUN.json.

A RUN.json is what a command's `--json` prints, one object that `gnndrive report` makes a page of.
`run_envelope` makes the keys that all kinds have; each command adds sections of its own, and a
reader ignores what it does not know. Figures of training are made only from the flat mapping that
`loader.stats()` returns, so that a report can be made again from the JSON of an earlier run. Rows
are counted once per batch; bytes read are what was requested from the disk, bytes wanted are those
of the rows.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnndrive.common.memory import format_size

if TYPE_CHECKING:
    from gnndrive.plan.plan import Plan

Stats = Mapping[str, Any]
Kind = Literal["train", "strategies", "headroom", "plan"]
LOOKED_UP = ("rows_hit", "rows_waited", "rows_loaded")

_words: ContextVar[Sequence[str] | None] = ContextVar("words", default=None)


# ---- numbers


def ratio(part: float, whole: float) -> float:
    """`part / whole`, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def si(number: float) -> str:
    """A count with a decimal prefix and three digits, or more above 999 G: 950, 12.3 k, 1.1 M."""
    for prefix in ("", " k", " M", " G"):
        if number < 999.5 or prefix == " G":
            break
        number /= 1000
    return f"{number:.0f}{prefix}" if number >= 999.5 else f"{number:.3g}{prefix}"


def percent(part: float, whole: float) -> str:
    """A share in per cent: 45.2 %."""
    return f"{100 * ratio(part, whole):.1f} %"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        words = [f"{name:<{widths[0]}}"]
        words += [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join(words).rstrip())
    return lines


def labelled(lines: Mapping[str, str]) -> list[str]:
    """Lines that begin with their names."""
    width = max(map(len, lines))
    return [f"  {name:<{width}} : {text}" for name, text in lines.items()]


def peak_memory_bytes() -> int:
    """The peak memory of this process, in bytes, mapped files included.

    It is Linux's VmHWM if that can be read. getrusage's figure serves worse, because a process
    inherits it from its parent.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:  # the system has no /proc
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def looked_up(stats: Stats) -> float:
    """Distinct rows that batches have looked up, of all tables together; `rows` counts nodes."""
    return float(sum(stats.get(name, 0) for name in LOOKED_UP))


def derived(stats: Stats) -> dict[str, float]:
    """Rates over `elapsed_s`, shares and sizes, from counters; missing ones count as 0.

    hit_rate and waited_rate are shares of the rows looked up: those in the buffer, and those that
    another batch was loading; wanted_rate is of the bytes read.
    """
    elapsed, rows = stats.get("elapsed_s", 0), stats.get("rows", 0)
    requests, read = stats.get("requests", 0), stats.get("bytes_read", 0)
    return {
        "rows_per_s": ratio(rows, elapsed),
        "requests_per_s": ratio(requests, elapsed),
        "read_bytes_per_s": ratio(read, elapsed),
        "hit_rate": ratio(stats.get("rows_hit", 0), looked_up(stats)),
        "waited_rate": ratio(stats.get("rows_waited", 0), looked_up(stats)),
        "wanted_rate": ratio(stats.get("bytes_wanted", 0), read),
        "bytes_per_request": ratio(read, requests),
        "s_per_batch": ratio(elapsed, stats.get("batches", 0)),
    }


# ---- text


def final_report(stats: Stats, *, title: str, results: Mapping[str, str]) -> str:
    """The report at the end of a run.

    Args:
        title: the beginning of the first line.
        results: more lines, such as accuracies, by name; they come last.
    """

    def of(name: str) -> Any:
        return stats.get(name, 0)

    rates, rows, elapsed = derived(stats), looked_up(stats), of("elapsed_s")
    lines = {
        "rows": f"{si(of('rows'))}, {si(rates['rows_per_s'])}/s; "
        f"buffer hits {percent(of('rows_hit'), rows)}, read for another batch "
        f"{percent(of('rows_waited'), rows)}, read {percent(of('rows_loaded'), rows)}",
        "reads": f"IOPS={si(rates['requests_per_s'])}, "
        f"BW={format_size(rates['read_bytes_per_s'])}/s, {si(of('requests'))} requests of "
        f"{format_size(rates['bytes_per_request'])}, {si(of('retries'))} retries",
        "bytes": f"{format_size(of('bytes_read'))} read, for batches with "
        f"{format_size(of('bytes_wanted'))} of rows",
        "stages": f"sample {of('sample_s'):.1f} s, extract {of('extract_s'):.1f} s, "
        f"gather {of('gather_s'):.1f} s, of all threads together",
        "waiting": f"{of('wait_s'):.1f} s for batches, "
        f"{percent(of('wait_s'), elapsed)} of the time",
        "memory": f"peak {format_size(peak_memory_bytes())}, "
        f"feature buffer {format_size(of('buffer_bytes'))} ({si(of('buffer_slots'))} rows)",
        **results,
    }
    head = (
        f"{title}: {of('batches'):,} batches in {elapsed:.1f} s "
        f"({rates['s_per_batch']:.3f} s each), engine={stats.get('engine', 'none')}"
    )
    return "\n".join([head, *labelled(lines)])


# ---- JSON


def as_json(stats: Stats, **more: Any) -> str:
    """The same report as one JSON object: the counters, the derived figures, and `more`."""
    peak = {"peak_memory_bytes": peak_memory_bytes()}
    return json_text({**stats, **derived(stats), **peak, **more})


def json_text(content: Mapping[str, Any]) -> str:
    """One JSON object, as the commands print it; a ValueError if a number is nan or infinite."""
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False)


@contextmanager
def typed(words: Sequence[str]) -> Iterator[None]:
    """A context in which `run_envelope` names the command of these words, which come after the
    program's name."""
    token = _words.set(words)
    try:
        yield
    finally:
        _words.reset(token)


def run_envelope(kind: Kind) -> dict[str, Any]:
    """The keys that every RUN.json has; `kind`: which sections a reader may expect."""
    words = _words.get()
    return {
        "gnndrive": version("gnndrive"),
        "kind": kind,
        "command": shlex.join(["gnndrive", *(sys.argv[1:] if words is None else words)]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "processors": os.cpu_count() or 1,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
    }


def plan_section(plan: Plan) -> dict[str, Any]:
    """The section "plan": what a plan says of each use of memory."""
    uses = (("host", plan.lines), ("device", plan.device_lines))
    return {
        "memory": plan.memory,
        "items": [
            {"what": item.what, "bytes": item.nbytes, "why": item.why, "where": where}
            for where, items in uses
            for item in items
        ],
        "text": plan.details(),
    }
