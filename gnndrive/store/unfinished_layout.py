"""`UnfinishedLayout`: the hidden folder of a layout that is being made, or whose maker was killed.

`unfinished_layouts` finds them, for lists of layouts and for cleaning up. When not to use it: to go
on with one; the same call that began it does that (derived_folder.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gnndrive.common.errors import StoreError
from gnndrive.common.file_lock import is_free, try_lock
from gnndrive.store.derived_folder import LayoutKind
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.parsing import Record
from gnndrive.store.temporary_folders import size_of

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class UnfinishedLayout:
    """The folder of an unfinished layout.

    Attributes:
        kind: the kind of layout.
        path: the folder.
        target: the folder that the layout will have.
        nbytes: the bytes of its files; those of rows are reserved before rows are written.
        in_use: whether a process makes it now, or that cannot be found out.
    """

    kind: LayoutKind
    path: Path
    target: Path
    nbytes: int
    in_use: bool

    def settings(self, mend: str, parse: Callable[[Record], Settings]) -> Settings | None:
        """The settings that it is made with; None: they are not known.

        Args:
            mend: what to do about settings that are damaged, for errors.
            parse: makes them of their record.
        """
        where = str(self.path / self.kind.record)
        try:
            content = read_plain(self.path, self.kind.record, JSON_BYTES_MAX)
            top = Record.parse(content, where, self.kind.record, mend)
            return parse(Record(top.value("settings", dict), where, "settings", mend))
        except (OSError, StoreError):
            return None

    def clean(self) -> bool:
        """Remove the folder; returns whether it is gone. It stays if a process works in it."""
        with contextlib.suppress(OSError):
            fd = try_lock(self.path / self.kind.lock)
            try:
                # What says which layout it is goes first, so that no maker goes on with the rest.
                for name in (self.kind.record, self.kind.json):
                    (self.path / name).unlink(missing_ok=True)
                for entry in list(os.scandir(self.path)):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    elif entry.name != self.kind.lock:
                        os.unlink(entry.path)
                shutil.rmtree(self.path)
            finally:
                os.close(fd)
        return not os.path.lexists(self.path)


def unfinished_layouts(folder: Path, kind: LayoutKind) -> list[UnfinishedLayout]:
    """The unfinished layouts of a kind in a folder, by name; folders in it are not searched.

    Raises:
        OSError: the folder cannot be read.
    """
    pattern = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{12}}{re.escape(kind.ending)}", re.DOTALL)
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        match = pattern.fullmatch(entry.name)
        if match is None or not entry.is_dir(follow_symlinks=False):
            continue
        path = Path(entry.path)
        if _is_ours(path, kind):
            held = (path / kind.lock).exists() and not is_free(path / kind.lock)
            found.append(UnfinishedLayout(kind, path, folder / match["name"], size_of(path), held))
    return found


def _is_ours(path: Path, kind: LayoutKind) -> bool:
    """Whether gnndrive made this folder, whose name could be another program's."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return False
    # A layout whose removal was interrupted may have lost its json.
    arrays = {each for name in kind.arrays for each in (name, f"{name}.npy")}
    return bool(names & {kind.lock, kind.record, kind.json}) or names <= arrays
