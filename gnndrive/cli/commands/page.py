"""`gnndrive report`: one HTML page made from the JSON of other commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from gnndrive.cli.report.html import page, read_run
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import replace_file


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN.json…", help="What train, plan or bench printed with --json."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The page; one that is there is replaced.")
    ] = Path("report.html"),
) -> None:
    """Make one page of runs that were written with --json: figures, tables, no network."""
    content = page(runs, [read_run(path) for path in runs])
    _write(out, content, runs)
    print(out)


def _write(out: Path, content: str, runs: list[Path]) -> None:
    """Write the page whole or not at all.

    Raises:
        ConfigError: it cannot be written there.
    """
    if any(out.exists() and path.exists() and out.samefile(path) for path in runs):
        raise ConfigError(f"-o {out} is one of the runs: give another name, such as report.html")
    if out.exists() and not out.is_file():
        raise ConfigError(f"-o {out} is no file: give a file's name, such as report.html")

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o644)
        file.write(content.encode())

    try:
        replace_file(out, write)
    except OSError as error:
        raise ConfigError(
            f"-o {out} cannot be written ({error.strerror}): give a file in a folder that is "
            "there, that you may write to, and that has room"
        ) from None
