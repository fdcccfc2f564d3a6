"""What of a table's rows is durable in the packed files: a small file, replaced atomically.

It is written after each part has been synced, so a packing that was killed goes on behind the last
part that it counts. A record of other outputs, of other files or of another version is ignored:
every row is then written again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnndrive.common.io.small_files import fsync_folder, write_all

SUFFIX = ".rows.json"
_VERSION = 1
_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class RowRecord:
    """Progress of one table.

    Attributes:
        key: identifies table, outputs and files.
        sums: the checksum of each output's rows so far.
        rows: all ids below it are written, or spooled.
        ordered: how many spooled pieces are in their own order.
        written: bytes written or spooled so far.
        files: the outputs' files, relative to the packed folder.
        ended: whether all rows are written, and the files synced.
    """

    key: str
    sums: list[int] = field(default_factory=list)
    rows: int = 0
    ordered: int = 0
    written: int = 0
    files: list[str] = field(default_factory=list)
    ended: bool = False

    def save(self, path: Path) -> None:
        """Replace the record at `path`, durably.

        Raises:
            OSError: the operating system's.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)}).encode()
        new = path.with_name(f".{path.name}.new")  # always the same: a killed process leaves one
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(new, flags, 0o666)
        try:
            write_all(fd, memoryview(text))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, path)
        fsync_folder(path.parent)


def forget(folder: Path, files: set[str]) -> None:
    """Remove the records of tables that have one of `files`, which are about to be made anew.

    Args:
        folder: the packed folder.
        files: paths relative to it.

    Raises:
        OSError: a record cannot be read or removed.
    """
    stale = [path for path in folder.glob(f"*{SUFFIX}") if _files_of(path) & files]
    for path in stale:
        os.unlink(path)
    if stale:
        fsync_folder(folder)


def _files_of(path: Path) -> set[str]:
    try:
        return set(json.loads(path.read_bytes())["files"])
    except (ValueError, TypeError, KeyError):
        return set()  # `load` ignores it


def load(path: Path, key: str, outputs: int) -> RowRecord:
    """The record at `path`, or a new one if there is none of this key.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            document: dict[str, Any] = json.loads(file.read(_BYTES_MAX))
        if document.pop("version") == _VERSION and document["key"] == key:
            record = RowRecord(**document)
            if len(record.sums) == outputs:
                return record
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        pass
    return RowRecord(key, [0] * outputs)
