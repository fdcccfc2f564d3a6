"""What computations that were killed have left in stores, for `gnndrive clean`.

A computation that was killed leaves its working folder `derived/NAME/RUN`, so that it can go on.
When not to use it: while a program is to go on with one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.errors import GNNDriveError
from gnndrive.common.file_lock import try_lock
from gnndrive.store.added import DERIVED
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX, STORE_JSON
from gnndrive.store.temporary_folders import size_of

_LOCK = ".lock"  # see `sole_use`
_RUN = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The working folder of a computation, which no record names and no process holds.

    Attributes:
        path: the folder.
        nbytes: the bytes of the files in it.
    """

    path: Path
    nbytes: int

    def clean(self) -> bool:
        """Remove the folder; returns whether it is gone. It stays if it is in use again."""
        with contextlib.suppress(OSError):
            fd = try_lock(self.path.parent / _LOCK, 0o644)
            try:
                if self.path in _unnamed(self.path.parent):
                    shutil.rmtree(self.path)
            finally:
                os.close(fd)
        return not os.path.lexists(self.path)


def unfinished(folder: Path) -> list[Unfinished]:
    """The working folders of killed computations in the stores of a folder.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for store in _folders(folder):
        if not (store / STORE_JSON).is_file():
            continue
        with contextlib.suppress(OSError):
            for name in _folders(store / DERIVED):
                if not _is_held(name):
                    found += [Unfinished(each, size_of(each)) for each in _unnamed(name)]
    return found


def _folders(folder: Path) -> list[Path]:
    if folder.name == DERIVED and folder.is_symlink():
        return []
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


def _is_held(name: Path) -> bool:
    """Whether a process computes this attribute, or that cannot be found out."""
    if not (name / _LOCK).exists():
        return True  # not made by a computation
    try:
        os.close(try_lock(name / _LOCK, 0o644))
    except OSError:
        return True
    return False


def _unnamed(name: Path) -> list[Path]:
    """The working folders of an attribute that its record does not name."""
    named = None
    record = name.with_name(f"{name.name}.json")
    if os.path.lexists(record):
        try:
            content = read_plain(record.parent, record.name, JSON_BYTES_MAX)
            named = str(json.loads(content)["run"])
        except (
            OSError,
            GNNDriveError,
            ValueError,
            TypeError,
            KeyError,
        ):  # damaged: nothing is known of the folders
            return []
    return [each for each in _folders(name) if _RUN.fullmatch(each.name) and each.name != named]
