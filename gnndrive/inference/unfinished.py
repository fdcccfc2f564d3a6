"""What computations that were killed have left, for `gnndrive clean`.

A computation that was killed leaves its working folder, in a store `derived/NAME/RUN`, in a folder
that the user named `.NAME-RUN`, so that it can go on. If its result has a record (outcome.py), only
what is of no more use is left, or files that have not got their place yet. When not to use it:
while a program is to go on with one of them.
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
from gnndrive.inference import outcome
from gnndrive.inference.outcome import KEY_FORM, is_working_folder
from gnndrive.inference.progress import LOCK
from gnndrive.store.added import DERIVED
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX, STORE_JSON
from gnndrive.store.temporary_folders import size_of

_RUN = re.compile(KEY_FORM)
_OUTSIDE = re.compile(rf"\.(?P<name>.+)-(?P<key>{KEY_FORM})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a killed computation left, which no process holds.

    Attributes:
        root: the folder of the attribute in a store, or the one that the user named.
        path: what is left, in it or itself.
        target: where `clean` puts the files of a whole result; None: `path` is of no use.
    """

    root: Path
    path: Path
    nbytes: int
    target: Path | None = None

    @property
    def remedy(self) -> str:
        """What `clean` does with it: "remove", or "restore" (move its files to `target`)."""
        return "remove" if self.target is None else "restore"

    def clean(self) -> bool:
        """Do what `remedy` says; returns whether it is gone. It stays if it is in use again."""
        with contextlib.suppress(OSError):
            fd = try_lock(self.root / LOCK, 0o644)
            try:
                left = {each.path: each.target for each in _left(self.root)}
                if self.path in left and left[self.path] == self.target:
                    match = _OUTSIDE.fullmatch(self.path.name)
                    if self.target is None:
                        outcome.remove(self.path)
                    elif match is not None:
                        outcome.put_in_place(self.root, match["name"], match["key"])
                if [each.path for each in _left(self.root)] == [self.root]:
                    shutil.rmtree(self.root)
            finally:
                os.close(fd)
        return not os.path.lexists(self.path)


def unfinished(folder: Path) -> list[Unfinished]:
    """What killed computations left in the stores of a folder, in it and in folders in it."""
    found = []
    for root in [folder, *_folders(folder)]:
        roots = [root]
        if (root / STORE_JSON).is_file() and not (root / DERIVED).is_symlink():
            with contextlib.suppress(OSError):
                roots += _folders(root / DERIVED)
        for each in roots:
            with contextlib.suppress(OSError):
                left = _left(each)
                found += left if left and not _is_held(each) else []
    return found


def _folders(folder: Path) -> list[Path]:
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


def _is_held(root: Path) -> bool:
    """Whether a process computes there, or that cannot be found out."""
    if not (root / LOCK).exists():
        # Not made by a computation, or by one that was killed before it had locked it.
        return not _is_in_store(root) or any(root.iterdir())
    try:
        os.close(try_lock(root / LOCK, 0o644))
    except OSError:
        return True
    return False


def _is_in_store(root: Path) -> bool:
    return root.parent.name == DERIVED and (root.parents[1] / STORE_JSON).is_file()


def _left(root: Path) -> list[Unfinished]:
    """What is left in a folder of results, also if a process holds it."""
    if _is_in_store(root):
        return [Unfinished(root, each, _size(each)) for each in _left_in_store(root)]
    found = []
    for each in _folders(root):
        match = _OUTSIDE.fullmatch(each.name)
        if match is not None and is_working_folder(each):
            record = root / f"{match['name']}.{outcome.KEY}"
            whole = _first_line(record) == match["key"]
            target = root / f"{match['name']}.npy" if whole else None
            found.append(Unfinished(root, each, _size(each), target))
    return found


def _left_in_store(root: Path) -> list[Path]:
    """The working folders that the attribute's record does not name, and what is left of work in
    the one that it names; the folder itself if nothing else is in it."""
    named = None
    record = root.with_name(f"{root.name}.json")
    if os.path.lexists(record):
        try:
            content = read_plain(record.parent, record.name, JSON_BYTES_MAX)
            named = str(json.loads(content)["run"])
        except (OSError, GNNDriveError, ValueError, TypeError, KeyError):
            return []  # it is damaged: nothing is known of the folders
    elif {each.name for each in root.iterdir()} <= {LOCK}:
        return [root]
    found = []
    for each in _folders(root):
        if _RUN.fullmatch(each.name) and is_working_folder(each):
            found += outcome.rest_of_work(each) if each.name == named else [each]
    return found


def _first_line(file: Path) -> str:
    try:
        content = read_plain(file.parent, file.name, JSON_BYTES_MAX)
        return content.decode("utf-8", "replace").partition("\n")[0]
    except (OSError, GNNDriveError):
        return ""


def _size(path: Path) -> int:
    return size_of(path) if path.is_dir() else path.lstat().st_size
