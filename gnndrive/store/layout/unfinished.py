"""`UnfinishedLayout`: the hidden folder of a layout that is being made, or whose maker was killed.

`unfinished_layouts` finds them, for lists of layouts and for cleaning up; also a layout that was
replaced or removed, or the rest of it. When not to use it: to go on with one; the same call that
began it does that (folder.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnndrive.common.errors import StoreError
from gnndrive.common.file_lock import is_free, try_lock
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.layout.folder import (
    ASIDE,
    put_into_place,
    remove_layout,
    remove_leftovers,
)
from gnndrive.store.layout.kind import LayoutKind, LayoutSettings
from gnndrive.store.parsing import Record
from gnndrive.store.temporary_folders import size_of


@dataclass(frozen=True, slots=True)
class UnfinishedLayout:
    """The folder of an unfinished layout.

    Attributes:
        kind: the kind of layout.
        path: the folder.
        target: the folder that the layout will have.
        nbytes: the bytes of its files; those of rows are reserved before rows are written.
        in_use: whether a process makes it now, or that cannot be found out.
        is_whole: whether it is whole, nothing is at `target`, and no other is put there.
    """

    kind: LayoutKind[Any]
    path: Path
    target: Path
    nbytes: int
    in_use: bool
    is_whole: bool

    def settings(self) -> LayoutSettings | None:
        """The settings that it is made with; None: they are not known."""
        name = self.kind.record
        try:
            content = read_plain(self.path, name, JSON_BYTES_MAX)
            top = Record.parse(content, str(self.path / name), name, self.kind.mend)
            return self.kind.settings(top.inner("settings"))
        except (OSError, StoreError):
            return None

    @property
    def remedy(self) -> str:
        """What `clean` does with it: "remove", or "restore" (move it to `target`)."""
        return "restore" if self.is_whole and not os.path.lexists(self.target) else "remove"

    def clean(self) -> bool:
        """Do what `remedy` says; returns whether the folder is gone. It stays if a process works in
        it."""
        return self._end(self.remedy == "restore")

    def remove(self) -> bool:
        """Remove the folder; returns whether it is gone. It stays if a process works in it."""
        return self._end(False)

    def _end(self, restore: bool) -> bool:
        with contextlib.suppress(OSError):
            fd = try_lock(self.path / self.kind.lock)
            try:
                if restore:
                    remove_leftovers(self.path, self.kind)
                    put_into_place(self.path, self.target, self.kind)
                else:
                    remove_layout(self.path, self.kind)
            finally:
                os.close(fd)
        return not os.path.lexists(self.path)


def unfinished_layouts(folder: Path, kind: LayoutKind[Any]) -> list[UnfinishedLayout]:
    """The unfinished layouts of a kind in a folder, by name, those that were replaced or removed
    last; folders in it are not searched.

    Raises:
        OSError: the folder cannot be read.
    """
    pattern = re.compile(
        rf"\.(?P<name>.+)\.(?P<digest>[0-9a-f]{{12}}){re.escape(kind.ending)}", re.DOTALL
    )
    names = (each.name for each in os.scandir(folder) if each.is_dir(follow_symlinks=False))
    matches = [match for match in map(pattern.fullmatch, names) if match is not None]
    found: list[UnfinishedLayout] = []
    for match in sorted(matches, key=lambda each: (each["digest"] == ASIDE, each.string)):
        path, target = folder / match.string, folder / match["name"]
        if not _is_ours(path, kind):
            continue
        held = (path / kind.lock).exists() and not is_free(path / kind.lock)
        others = [each for each in found if each.target == target]
        if match["digest"] == ASIDE:  # its maker holds the lock of the new one
            held = held or any(each.in_use for each in others)
        whole = (path / kind.json).exists() and not os.path.lexists(target)
        whole = whole and not any(each.is_whole for each in others)
        found.append(UnfinishedLayout(kind, path, target, size_of(path), held, whole))
    return found


def _is_ours(path: Path, kind: LayoutKind[Any]) -> bool:
    """Whether gnndrive made this folder, whose name could be another program's."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return False
    # A layout whose removal was interrupted may have lost its json.
    arrays = {each for name in kind.arrays for each in (name, f"{name}.npy")}
    return bool(names & {kind.lock, kind.record, kind.json}) or names <= arrays
