"""`gnndrive bench io | disk | strategies | headroom`: measure the disk, strategies and training.

The last two commands are in `bench_strategies.py` and `headroom.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gnndrive.cli.commands.bench_strategies import strategies
from gnndrive.cli.commands.headroom import headroom
from gnndrive.cli.commands.options import Engine, Json, Rounds, StorePath
from gnndrive.cli.measure import calibrate, fio, raw, rows, text
from gnndrive.cli.report import Bars
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_block_size
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.store.calibration import DISK_JSON, gap_bytes
from gnndrive.store.reader import open as open_store
from gnndrive.store.reader import open_homogeneous

app = typer.Typer(no_args_is_help=True)
app.command("strategies")(strategies)
app.command("headroom")(headroom)

Depth = Annotated[int, typer.Option(min=1, help="Reads in flight in each job.")]
FIO_SECONDS, URING = 3.0, "uring"
SECTOR_BYTES = 512


@app.callback()
def bench() -> None:
    """Measure the disk, strategies, and what limits training."""


@app.command("disk")
def disk(
    store: StorePath,
    iodepth: Depth = calibrate.DEPTH,
    ioengine: Engine = None,
    json_: Json = False,
) -> None:
    """Measure what a request, a byte and a written byte take on a store's disk, for plans."""
    opened = open_store(store)
    with Bars() as bars:
        told = partial(bars, "reading")
        cost = calibrate.calibrate(opened, depth=iodepth, ioengine=ioengine or URING, progress=told)
    gap = gap_bytes(cost, SWEEP_BLOCK_BYTES)
    if json_:
        print(json.dumps({**asdict(cost), "gap_bytes": gap}, indent=2))
        return
    print(f"{opened.path / DISK_JSON}: {text.costs(cost)}")
    print(text.points_report(cost))
    print(f"loaders of this store will read over gaps of up to {gap:,} bytes")


@app.command("io")
def io(
    filename: Annotated[str | None, typer.Option(help="File to read; never written.")] = None,
    rw: Annotated[
        Literal["read", "randread"], typer.Option(help="Read in order or at random.")
    ] = "randread",
    bs: Annotated[str, typer.Option(help="Bytes of a read: 512, 4k, 1m.")] = "4k",
    iodepth: Depth = 128,
    numjobs: Annotated[int, typer.Option(min=1, help="Jobs, each with its own ring.")] = 1,
    direct: Annotated[int, typer.Option(min=0, max=1, help="1: bypass the page cache.")] = 1,
    runtime: Annotated[float | None, typer.Option(help="Seconds; default: read --size.")] = None,
    size: Annotated[str | None, typer.Option(help="Bytes to use from the start; all.")] = None,
    ioengine: Engine = None,
    rows_of: Annotated[
        Path | None,
        typer.Option(
            "--rows", metavar="STORE", help="Read rows of this store at random instead of a file."
        ),
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="With --rows: the share of all rows; default: 0.05.")
    ] = None,
    against_fio: Annotated[bool, typer.Option(help="Alternate with fio; print ratios.")] = False,
    runs: Rounds = 1,
    output_format: Annotated[
        Literal["normal", "json"],
        typer.Option("--output-format", "--output_format", help="As in fio."),
    ] = "normal",
) -> None:
    """Read a file as fio does, or rows as the read planner does; never write anything."""
    if (filename is None) == (rows_of is None):
        raise ConfigError("give either --filename FILE, to read a file, or --rows STORE")
    options = raw.IoOptions(
        filename=filename or "", rw=rw, bs=parse_block_size(bs, "bs"), iodepth=iodepth,
        numjobs=numjobs, direct=bool(direct), runtime_s=runtime,
        size=None if size is None else parse_block_size(size, "size"),
        ioengine=ioengine or URING,
    )  # fmt: skip
    as_json, fio_runs = output_format == "json", runs if against_fio else 0
    if rows_of is None:
        if share is not None:
            raise ConfigError("--share needs --rows STORE")
        if fio_runs and options.runtime_s is None and options.size is None:
            options = replace(options, runtime_s=FIO_SECONDS)
        _show(
            lambda: raw.run(options),
            lambda done: (text.io_json(options, done), text.io_report(options, done), done.iops),
            "IOPS", options, fio_runs, as_json,
        )  # fmt: skip
        return
    of_files, default = ["rw", "bs", "numjobs", "direct", "size"], raw.IoOptions("")
    for name in of_files + ([] if fio_runs else ["runtime_s"]):
        if getattr(options, name) != getattr(default, name):
            option = f"--{name.removesuffix('_s')}"
            raise ConfigError(f"{option} is for --filename FILE: leave it out with --rows STORE")
    opened = open_homogeneous(rows_of, "gnndrive bench io --rows")
    part, file = rows.SHARE if share is None else share, opened.table(rows.FEATURES)
    by_fio = replace(
        options,
        filename=file.path,
        bs=-(-file.row_bytes // SECTOR_BYTES) * SECTOR_BYTES,
        runtime_s=runtime or FIO_SECONDS,
    )
    _show(
        lambda: rows.run(opened, part, options.iodepth, options.ioengine),
        lambda result: (text.rows_json(result), text.rows_report(result), result.rows_per_s),
        "rows/s", by_fio, fio_runs, as_json,
    )  # fmt: skip


def _show(
    read: Callable[[], Any], described: Callable[[Any], tuple[dict[str, Any], str, float]],
    what: str, by_fio: raw.IoOptions, runs: int, as_json: bool,
) -> None:  # fmt: skip
    """Read once, or `runs` times in turn with fio, and print the report of the last time.

    `described` makes of what `read` returned: content for JSON, a text, and the figure `what`,
    which is compared with fio's.
    """
    if runs:
        fio.require_fio()
        results, fios = fio.in_turn(read, lambda: fio.run_fio(by_fio), runs)
    else:
        results, fios = [read()], []
    content, report, _ = described(results[-1])
    if runs:
        compared, lines = fio.against(what, [described(one)[2] for one in results], fios)
        content |= {"against fio": compared}
        report = f"{report}\n{lines}"
    print(json.dumps(content, indent=2) if as_json else report)
