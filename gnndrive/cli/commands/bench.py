"""`gnndrive bench io | disk | strategies | headroom`: measure the disk, strategies and training.

The last two commands are in `bench_strategies.py` and `headroom.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gnndrive.cli.commands.bench_strategies import strategies
from gnndrive.cli.commands.headroom import headroom
from gnndrive.cli.commands.options import parse_fanout
from gnndrive.cli.measure import calibrate, fio, raw, rows, text
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_block_size
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.store.calibration import DISK_JSON, gap_bytes
from gnndrive.store.reader import open as open_store
from gnndrive.store.reader import open_homogeneous

app = typer.Typer(
    no_args_is_help=True, help="Measure the disk, strategies, and what limits training."
)
app.command("strategies")(strategies)
app.command("headroom")(headroom)

Pattern = Literal["read", "randread"]
Engine = Annotated[
    Literal["uring", "threads"], typer.Option(help="Engine that carries out the reads.")
]
Depth = Annotated[int, typer.Option(min=1, help="Reads in flight in each job.")]
BatchSubmit = Annotated[
    int,
    typer.Option(
        "--iodepth-batch-submit",
        "--iodepth_batch_submit",
        min=0,
        help="Requests submitted at once; 0: an eighth of --iodepth.",
    ),
]
BatchComplete = Annotated[
    int,
    typer.Option(
        "--iodepth-batch-complete-min",
        "--iodepth_batch_complete_min",
        min=1,
        help="Completions to wait for at once.",
    ),
]
Slat = Annotated[
    bool,
    typer.Option(
        "--slat/--disable-slat", help="Measure slat and clat apart; one more system call."
    ),
]
RowsOf = Annotated[
    Path | None,
    typer.Option(
        "--rows", metavar="STORE", help="Read rows of this store's batches instead of a file."
    ),
]
OutputFormat = Annotated[
    Literal["normal", "json"],
    typer.Option("--output-format", "--output_format", help="As in fio."),
]
FIO_SECONDS = 3.0
SECTOR_BYTES = 512


@app.command("disk")
def disk(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store's folder.")],
    iodepth: Depth = calibrate.DEPTH,
    ioengine: Engine = "uring",
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure seconds per request and per byte on a store's disk; loaders plan reads with them."""
    opened = open_store(store)
    cost = calibrate.calibrate(opened, depth=iodepth, ioengine=ioengine)
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
    rw: Annotated[Pattern, typer.Option(help="Read in order or at random.")] = "randread",
    bs: Annotated[str, typer.Option(help="Bytes of a read: 512, 4k, 1m.")] = "4k",
    iodepth: Depth = 128,
    numjobs: Annotated[int, typer.Option(min=1, help="Jobs, each with its own ring.")] = 1,
    direct: Annotated[int, typer.Option(min=0, max=1, help="1: bypass the page cache.")] = 1,
    runtime: Annotated[float | None, typer.Option(help="Seconds; default: read --size.")] = None,
    size: Annotated[str | None, typer.Option(help="Bytes to use from the start; all.")] = None,
    ioengine: Engine = "uring",
    iodepth_batch_submit: BatchSubmit = 0,
    iodepth_batch_complete_min: BatchComplete = 1,
    slat: Slat = True,
    rows_of: RowsOf = None,
    share: Annotated[float | None, typer.Option(help="Share of all rows, not samples.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Batches of --rows.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Seeds in a sample.")] = 1000,
    fanout: Annotated[str, typer.Option(help="Neighbours to sample, a hop.")] = "10,10,10",
    gap: Annotated[
        int | None, typer.Option(min=0, help="Gap in bytes to read over; default: calibrated.")
    ] = None,
    separate: Annotated[bool, typer.Option(help="With --rows: one request per row.")] = False,
    recalibrate: Annotated[
        bool, typer.Option(help="With --rows: measure the disk between reads, and predict by it.")
    ] = False,
    against_fio: Annotated[bool, typer.Option(help="Alternate with fio; print ratios.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, with --against-fio.")] = 1,
    output_format: OutputFormat = "normal",
) -> None:
    """Read a file as fio does, or the rows of batches; never write anything."""
    if (filename is None) == (rows_of is None):
        raise ConfigError("give either --filename FILE, to read a file, or --rows STORE")
    if rows_of is None and (share is not None or gap is not None or separate or recalibrate):
        raise ConfigError("--share, --gap, --separate and --recalibrate need --rows STORE")
    options = raw.IoOptions(
        filename=filename or "", rw=rw, bs=parse_block_size(bs, "bs"), iodepth=iodepth,
        numjobs=numjobs, direct=bool(direct), runtime_s=runtime,
        size=None if size is None else parse_block_size(size, "size"), ioengine=ioengine,
        submit_batch=iodepth_batch_submit,
        complete_min=iodepth_batch_complete_min, slat=slat,
    )  # fmt: skip
    as_json, fio_runs = output_format == "json", runs if against_fio else 0
    if rows_of is None:
        show_io(options, fio_runs, as_json)
        return
    wanted = rows.RowsOptions(
        share=share, batches=batches, batch_size=batch_size, fanout=parse_fanout(fanout), gap=gap,
        separate=separate, iodepth=iodepth, ioengine=ioengine,
        submit_batch=iodepth_batch_submit,
        complete_min=iodepth_batch_complete_min, recalibrate=recalibrate,
    )  # fmt: skip
    show_rows(rows_of, wanted, options, fio_runs, as_json)


def show_io(options: raw.IoOptions, runs: int, as_json: bool) -> None:
    """Read a file and print the report.

    Args:
        options: what to read.
        runs: how many times to run in turn with fio; 0: once, without fio.
        as_json: print JSON in fio's form.

    Raises:
        ConfigError, StoreError, ReadError: as `raw.run`; ConfigError: fio is not installed.
    """
    if not runs:
        driven = raw.run(options)
        content = text.io_json(options, driven)
        print(json.dumps(content, indent=2) if as_json else text.io_report(options, driven))
        return
    fio.require_fio()
    if options.runtime_s is None and options.size is None:
        options = replace(options, runtime_s=FIO_SECONDS)
    results, fios = fio.in_turn(lambda: raw.run(options), lambda: fio.run_fio(options), runs)
    figures = [one.iops for one in results]
    _show_against_fio(
        text.io_json(options, results[-1]),
        text.io_report(options, results[-1]),
        "IOPS", figures, fios, as_json,
    )  # fmt: skip


def show_rows(
    store: Path, wanted: rows.RowsOptions, options: raw.IoOptions, runs: int, as_json: bool
) -> None:
    """Read rows of a store and print the report.

    Args:
        store: the store.
        wanted: which rows.
        options: how fio reads the same file; its block size becomes the row's.
        runs: how many times to run in turn with fio; 0: once, without fio.
        as_json: print JSON.

    Raises:
        ConfigError, StoreError, ReadError: as `rows.run`; ConfigError: fio is not installed.
    """
    opened = open_homogeneous(store, "gnndrive bench io rows=STORE")
    if not runs:
        result = rows.run(opened, wanted)
        print(json.dumps(text.rows_json(result)) if as_json else text.rows_report(result))
        return
    fio.require_fio()
    file = opened.table(rows.FEATURES)
    options = replace(
        options,
        filename=file.path,
        bs=-(-file.row_bytes // SECTOR_BYTES) * SECTOR_BYTES,
        runtime_s=options.runtime_s or FIO_SECONDS,
    )
    results, fios = fio.in_turn(
        lambda: rows.run(opened, wanted), lambda: fio.run_fio(options), runs
    )  # fmt: skip
    figures = [one.rows_per_s for one in results]
    _show_against_fio(
        text.rows_json(results[-1]), text.rows_report(results[-1]), "rows/s", figures, fios, as_json
    )


def _show_against_fio(
    content: dict[str, Any],
    report: str,
    what: str,
    figures: list[float],
    fios: list[fio.FioResult],
    as_json: bool,
) -> None:
    compared, lines = fio.against(what, figures, fios)
    if as_json:
        print(json.dumps({**content, "against fio": compared}, indent=2))
        return
    print(report)
    print(lines)
