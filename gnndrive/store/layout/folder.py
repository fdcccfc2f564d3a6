"""`LayoutFolder`: the hidden folder in which a derived layout of a store is made.

Its name depends on the layout's path and settings alone: `.NAME.DIGEST.ENDING`, beside the layout.
A maker keeps a file in it locked while it lives, so a second maker of the same is refused, and one
that comes after a killed one takes the folder over. A record in it says of which store it is; a
folder of another store is emptied. `finish` writes the layout's json, fsyncs and renames: a layout
exists whole or not at all. One that is replaced or removed is first renamed to `aside_of` its path.

When not to use it: for stores, which are written anew after a kill (temporary_folders.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import has_no_locks, is_free, remove_if_free, try_lock
from gnndrive.common.io.small_files import PART, fsync_folder, write_whole
from gnndrive.common.io.write_errors import write_failure
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.layout.kind import Info, LayoutKind, LayoutSettings
from gnndrive.store.reader import Store
from gnndrive.store.temporary_folders import remove_entry, size_of

ASIDE = 12 * "0"  # stands for the digest


class LayoutFolder(Generic[Info]):
    """The folder of an unfinished layout; use it as a context manager, which holds the lock.

    `overwrite` says whether a layout that is at `target` is replaced when this one is finished.

    Attributes:
        path: the folder, which is there within the `with` block.
        resumed: whether an earlier maker has left it.
        finished: the layout, if an earlier maker was killed just before it renamed the folder,
            which this one does then; else None.

    Raises:
        ConfigError: another process makes the same, or there is something at `target`.
        StoreError: the folder cannot be made, or its file system has no locks.
    """

    def __init__(
        self, kind: LayoutKind[Info], store: Store, target: Path, settings: LayoutSettings,
        overwrite: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self._store, self._overwrite = kind, store, overwrite
        self._settings = settings.as_dict()
        self.target = Path(os.path.abspath(target))
        self.path = self.target.parent / f".{self.target.name}.{settings.digest}{kind.ending}"
        self.resumed, self._lock = False, -1
        self.finished: Info | None = None

    def _read(self) -> Info:
        return self.kind.read(self.path, self._store)

    def __enter__(self) -> Self:
        self._refuse_finished()
        try:
            if self.target.parent == Path(self._store.path, self.kind.inside):
                self.target.parent.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)
            self._lock = try_lock(self.path / self.kind.lock)
        except BlockingIOError:
            raise ConfigError(
                f"another process is {self.kind.doing} {self.target} with the same settings: wait "
                "until it ends"
            ) from None
        except FileNotFoundError:
            raise ConfigError(
                f"{self.target.parent} is not there, or another process has just finished "
                f"{self.target}: make the folder, or use what was made"
            ) from None
        except OSError as error:
            if has_no_locks(error):
                raise StoreError(
                    f"the file system of {self.path} has no locks: {self.kind.elsewhere}"
                ) from None
            raise write_failure(self.path, error) from error
        try:
            if os.path.lexists(self.target) and not self._overwrite:
                shutil.rmtree(self.path, ignore_errors=True)  # another maker has just finished it
            self._refuse_finished()
            self._take_over()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._lock >= 0:
            if any(isinstance(each, ConfigError) for each in raised):
                with contextlib.suppress(OSError):  # nothing was made, so nothing is kept
                    if set(os.listdir(self.path)) <= {self.kind.lock, self.kind.record}:
                        self.discard()
            os.close(self._lock)
            self._lock = -1

    def _refuse_finished(self) -> None:
        if os.path.lexists(self.target) and not self._overwrite:
            # The lock of a maker that was killed after it had finished.
            remove_if_free(self.target / self.kind.lock)
            raise ConfigError(
                f"{self.target} is there already{self._said_of_target()}: use it, or "
                f"{self.kind.in_the_way}"
            )

    def _said_of_target(self) -> str:
        """What the error says more of a layout that is there."""
        return ""

    def _record(self) -> dict[str, Any]:
        return {
            "version": self.kind.version, "store": self._store.identity, "settings": self._settings,
        }  # fmt: skip

    def _take_over(self) -> None:
        """Go on in a folder of the same store and settings; empty any other."""
        content = json.dumps(self._record(), sort_keys=True).encode()
        try:
            self.resumed = (self.path / self.kind.record).read_bytes() == content
        except OSError:
            self.resumed = False
        if (whole := self._whole()) is not None:
            self.finished = self.finish(whole)
            return
        if not self.resumed:
            self.kind.remove_elsewhere(self.path)
        for entry in list(os.scandir(self.path)):
            if entry.name == self.kind.lock or (self.resumed and not entry.name.endswith(PART)):
                continue
            try:
                remove_entry(entry)
            except OSError as error:
                raise write_failure(Path(entry.path), error) from error
        if not self.resumed:
            write_whole(self.path / self.kind.record, content)

    def _whole(self) -> Info | None:
        """The layout, if an earlier maker has finished it, which may have removed its record."""
        try:
            found = self._read()
        except StoreError:
            return None
        return found if found.settings.as_dict() == self._settings else None

    def discard(self) -> None:
        """Remove the folder, because the same layout can never be finished."""
        shutil.rmtree(self.path, ignore_errors=True)

    def finish(self, info: Info) -> Info:
        """Write the layout's json and give the folder its name; all arrays are written and fsynced.

        Returns:
            `info`, as it was read again.
        """
        write_whole(self.path / self.kind.json, self.kind.dump(info))
        found = self._read()  # a layout that could not be read is never renamed
        self._refuse_finished()  # with other settings, another maker may have been faster
        try:
            remove_leftovers(self.path, self.kind)
            if self._overwrite and os.path.lexists(self.target):
                put_aside(self.target, self.kind)
            put_into_place(self.path, self.target, self.kind)
            remove_layout(aside_of(self.target, self.kind), self.kind)
        except OSError as error:
            raise write_failure(self.target, error) from error
        return found


def remove_leftovers(path: Path, kind: LayoutKind[Any]) -> None:
    """Remove what only an unfinished layout has."""
    kept = {kind.json, kind.lock, *(f"{name}.npy" for name in kind.arrays)}
    for entry in list(os.scandir(path)):
        if entry.name not in (kind.arrays if entry.is_dir(follow_symlinks=False) else kept):
            remove_entry(entry)
    fsync_folder(path)


def put_into_place(path: Path, target: Path, kind: LayoutKind[Any]) -> None:
    """Give the folder of a whole layout its name, and remove its lock."""
    os.rename(path, target)
    (target / kind.lock).unlink(missing_ok=True)  # the last: before that, it can be taken over
    fsync_folder(target.parent)


def aside_of(target: Path, kind: LayoutKind[Any]) -> Path:
    """Where a layout goes that is replaced or removed."""
    return target.with_name(f".{target.name}.{ASIDE}{kind.ending}")


def put_aside(target: Path, kind: LayoutKind[Any]) -> None:
    """Move a layout out of the way; of a link, only the link is removed."""
    if target.is_symlink():
        target.unlink()
        return
    aside = aside_of(target, kind)
    remove_layout(aside, kind)  # of an earlier call that was killed
    os.rename(target, aside)


def remove_layout(path: Path, kind: LayoutKind[Any]) -> None:
    """Remove the folder of a layout, if it is there; its lock goes last.

    What says which layout it is goes first: if this is interrupted, no maker goes on with the rest,
    and it is not taken for a whole one.
    """
    if not path.exists():
        return
    kind.remove_elsewhere(path)
    for name in (kind.record, kind.json):
        (path / name).unlink(missing_ok=True)
    for entry in list(os.scandir(path)):
        if entry.name != kind.lock:
            remove_entry(entry)
    shutil.rmtree(path)


@dataclass(frozen=True, slots=True)
class UnfinishedLayout:
    """The folder of an unfinished layout."""

    kind: LayoutKind[Any]
    path: Path
    target: Path  # the folder that the layout will have
    nbytes: int  # of its files; those of rows are reserved before rows are written
    in_use: bool  # whether a process makes it now, or that cannot be found out
    is_whole: bool  # and nothing is at `target`, and no other is put there

    def settings(self) -> LayoutSettings | None:
        """The settings that it is made with; None: they are not known."""
        try:
            content = read_plain(self.path, self.kind.record, JSON_BYTES_MAX)
            return self.kind.settings(Record.parse(content, "", "").inner("settings"))
        except StoreError:
            return None

    @property
    def remedy(self) -> str:
        """What `clean` does with it: "remove", or "restore" (move it to `target`)."""
        return "restore" if self.is_whole and not os.path.lexists(self.target) else "remove"

    def clean(self) -> bool:
        """Do what `remedy` says; returns whether the folder is gone. It stays if a process works in
        it."""
        restore = self.remedy == "restore"
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
    last; folders in it are not searched."""
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
