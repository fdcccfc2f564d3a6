"""Hidden folders of unfinished work, which say whether their process is alive.

A store is written into a hidden folder beside its path, and DuckDB sorts in another. A process that
is killed leaves them behind, as large as the store. `TemporaryFolder` keeps a file in its folder
locked while its process lives, so the folders that no process holds can be found and removed.

A name is `.NAME.8 HEX DIGITS.KIND`, beside NAME. The kinds:

- tmp: a store that is being written. Once store.json is in it, it is whole, and if nothing is at
  NAME, `gnndrive clean` puts it there.
- sort: what is of use only to its process: edges being sorted, rows of an evaluation.
- old: a store that another one is replacing. If nothing is at NAME, it is put back.
- new: a whole store that is to replace one that cannot be renamed (`StoreWriter`), which has been
  removed in part if it has no store.json; then the replacement is finished.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.file_lock import has_no_locks, remove_if_free, try_lock
from gnndrive.common.io.small_files import fsync_folder
from gnndrive.common.limits import refusal
from gnndrive.store.format import STORE_JSON

LOCK = "writing.lock"
LOCKED = ".gnndrive.lock"  # ends the name of the file that `lock_of` returns
REPLACED = "replaced"  # in a folder that is being removed; it goes last
_NAME = re.compile(r"\.(?P<name>.+)\.(?P<id>[0-9a-f]{8})\.(?P<kind>tmp|sort|old|new)", re.DOTALL)
_OURS = {"graph", "nodes", "edges", "splits", STORE_JSON, LOCK}  # what a new store holds


class TemporaryFolder:
    """A hidden folder beside the path `target`, with a lock in it. It can be a context manager.

    Raises:
        OSError: the folder, or the lock in it, cannot be made.
        ConfigError: too many files are open.
    """

    def __init__(self, target: Path, kind: str = "tmp") -> None:
        while True:
            self.path = target.parent / f".{target.name}.{secrets.token_hex(4)}.{kind}"
            self.path.mkdir()
            try:
                self._lock: int | None = _lock(self.path)
            except (BlockingIOError, FileNotFoundError):  # `leftovers` was faster
                continue
            except OSError as error:
                if not has_no_locks(error):  # without a lock, another process could remove it later
                    with contextlib.suppress(OSError):
                        (self.path / LOCK).unlink(missing_ok=True)
                        self.path.rmdir()
                    raise refusal(error.errno or 0) or error from None
                self._lock = None  # where there are no locks, nothing is ever removed
            return

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *raised: object) -> None:
        self.remove()

    def moved(self, path: Path) -> None:
        """Forget the folder, which is at `path` now, finished: remove its lock."""
        with contextlib.suppress(OSError):
            os.unlink(path / LOCK)
        self.release()

    def remove(self) -> None:
        """Remove the folder."""
        with contextlib.suppress(OSError):
            remove(self.path)
        self.release()

    def release(self) -> None:
        """Free the lock; the folder stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A temporary folder that no process holds, made beside `target`."""

    path: Path
    target: Path
    kind: str
    nbytes: int

    @property
    def remedy(self) -> str:
        """What `clean` does with it: "remove", "restore" (move it to `target`) or "keep"."""
        if self.kind == "tmp" and _is_whole(self.path) and not os.path.lexists(self.target):
            return "remove" if self.path.with_suffix(".old").exists() else "restore"
        if self.kind in ("tmp", "sort") or _is_whole(self.target) or not _is_whole(self.path):
            return "remove"
        if self.kind == "old":
            return "keep" if os.path.lexists(self.target) else "restore"
        return "restore" if _is_rest_of_store(self.target) else "keep"

    def clean(self, anew: bool = False) -> bool:
        """Remove the folder or move it to `target`; returns whether it is gone.

        A folder that a process has taken meanwhile, or that cannot be removed, stays. With `anew`,
        a whole new store is removed too, because it is about to be written again.
        """
        lock = None
        try:
            if self.kind != "old":
                lock = _lock(self.path)
            remedy = "remove" if anew and self.kind == "tmp" else self.remedy
            if remedy == "restore":
                if self.target.is_dir():
                    remove(self.target)
                os.rename(self.path, self.target)
                (self.target / LOCK).unlink(missing_ok=True)
                fsync_folder(self.target.parent)
            elif remedy == "remove":
                if self.kind == "new" and _is_whole(self.target):
                    (self.target / REPLACED).unlink(missing_ok=True)
                remove(self.path)
            else:
                return False
        except OSError:
            return not os.path.lexists(self.path)
        finally:
            if lock is not None:
                os.close(lock)
        return True


def lock_of(target: Path) -> Path:
    """The file that a process holds while it makes the store at `target` (if_exists.py)."""
    return target.with_name(f".{target.name}{LOCKED}")


def leftovers(folder: Path, name: str | None = None) -> list[Leftover]:
    """The temporary folders in `folder`, of the store `name` (None: of all), that no process holds
    and that are of no use where they are, in the order to clean them; OSError: `folder` cannot be
    read."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        match = _NAME.fullmatch(entry.name)
        if match is None or not entry.is_dir(follow_symlinks=False):
            continue
        if name is not None and match["name"] != name:
            continue
        path, kind = Path(entry.path), match["kind"]
        writer = path.with_suffix(".tmp")
        if _is_ours(path, kind) and not _is_held(writer if kind == "old" else path):
            found.append(Leftover(path, folder / match["name"], kind, size_of(path)))
    found = [each for each in found if each.remedy != "keep"]
    # A store that was replaced is put back before the one that should have replaced it is removed.
    return sorted(found, key=lambda each: ("old", "new", "sort", "tmp").index(each.kind))


def remove(folder: Path) -> None:
    """Remove a folder of ours; OSError: something in it cannot be removed. If this is interrupted,
    a file REPLACED tells that the rest of it is no folder of the user."""
    (folder / REPLACED).touch()
    for entry in list(os.scandir(folder)):
        if entry.name != REPLACED:
            remove_entry(entry)
    (folder / REPLACED).unlink(missing_ok=True)
    os.rmdir(folder)


def remove_entry(entry: os.DirEntry[str]) -> None:
    """Remove a file, or a folder with all that is in it."""
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        os.unlink(entry.path)


def clear(target: Path) -> None:
    """Clean up what processes that were killed have left of a store at `target`."""
    with contextlib.suppress(OSError):
        for leftover in leftovers(target.parent, target.name):
            leftover.clean(anew=True)
        remove_if_free(lock_of(target))
        if (target / LOCK).exists() and not _is_held(target):
            os.unlink(target / LOCK)  # of a writer that was killed after it had put it there
        if _is_whole(target):
            os.unlink(target / REPLACED)  # of one that was killed before it removed anything


def _lock(folder: Path) -> int:
    """Lock a temporary folder; see `try_lock`."""
    return try_lock(folder / LOCK, 0o600)


def _is_held(folder: Path) -> bool:
    """Whether a process holds the folder, or that cannot be found out."""
    if not (folder / LOCK).exists():
        return False
    try:
        os.close(_lock(folder))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _is_ours(folder: Path, kind: str) -> bool:
    """Whether gnndrive made this folder, whose name could be another program's."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return False
    if kind == "sort":
        return bool(names & {LOCK, REPLACED}) or not names
    return names <= _OURS or bool(names & {LOCK, REPLACED, STORE_JSON})


def _is_whole(folder: Path) -> bool:
    return (folder / STORE_JSON).is_file()


def _is_rest_of_store(folder: Path) -> bool:
    """Whether nothing is there, or what `remove` has left."""
    if not os.path.lexists(folder):
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return not folder.is_symlink() and (not names or REPLACED in names)


def size_of(folder: Path) -> int:
    """The bytes of the files in a folder."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(root) / file).st_size
    return total
