"""`PackingFolder`: the hidden folder of an unfinished pack, which a later packer goes on with.

Its name depends on the pack's path and settings alone: `.NAME.DIGEST.packing`, beside the pack. A
packer keeps a file in it locked while it lives, so a second packer of the same pack is refused, and
one that comes after a killed one takes the folder over. packing.json says of which store it is; a
folder of another store is emptied. `finish` writes pack.json, fsyncs and renames: a pack exists
whole or not at all.

When not to use it: for stores, which are written anew after a kill (temporary_folders.py).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from gnndrive.common.atomic_files import fsync_folder
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import has_no_locks, remove_if_free, try_lock
from gnndrive.common.limits import refusal
from gnndrive.store.packed.format import INDEX, PACK_JSON, VERSION, PackInfo, dump, open_pack
from gnndrive.store.packed.settings import PackSettings
from gnndrive.store.packed.volumes import PART, failure, write_whole
from gnndrive.store.reader import Store

PACKING_JSON, LOCK = "packing.json", "packing.lock"
PACKING = ".packing"  # ends the name of the folder
_KEPT = (PACK_JSON, f"{INDEX}.npy", LOCK)  # files of a finished pack; the lock goes last


class PackingFolder:
    """The folder of an unfinished pack; use it as a context manager, which holds the lock.

    Args:
        store: the store that is packed.
        target: the pack's folder.
        settings: what the pack is made with.

    Attributes:
        path: the folder, which is there within the `with` block.
        resumed: whether an earlier packer has left it.
        finished: the pack, if an earlier packer was killed just before it renamed the folder, which
            this one does then; else None.

    Raises:
        ConfigError: another process is packing this, or there is something at `target`.
        StoreError: the folder cannot be made, or its file system has no locks.
    """

    def __init__(self, store: Store, target: Path, settings: PackSettings) -> None:
        self._store, self._settings = store, settings
        self.target = Path(os.path.abspath(target))
        self.path = self.target.parent / f".{self.target.name}.{settings.digest}{PACKING}"
        self.resumed, self._lock = False, -1
        self.finished: PackInfo | None = None

    def __enter__(self) -> PackingFolder:
        self._refuse_finished()
        try:
            if self.target.parent == Path(self._store.path, "packed"):
                self.target.parent.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)
            self._lock = try_lock(self.path / LOCK)
        except (BlockingIOError, FileNotFoundError) as error:
            raise self._not_there(error) from None
        except OSError as error:
            if has_no_locks(error):
                raise StoreError(
                    f"the file system of {self.path} has no locks: pack to another one with out="
                ) from None
            raise refusal(error.errno or 0) or failure(error, self.path) from error
        try:
            if os.path.lexists(self.target):  # another packer has just finished it
                shutil.rmtree(self.path, ignore_errors=True)
            self._refuse_finished()
            self._take_over()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _refuse_finished(self) -> None:
        if os.path.lexists(self.target):
            remove_if_free(self.target / LOCK)  # of a packer that was killed after it had finished
            raise ConfigError(
                f"{self.target} is there already: use it, or remove it first (gnndrive unpack)"
            )

    def _not_there(self, error: OSError) -> Exception:
        if isinstance(error, BlockingIOError):
            return ConfigError(
                f"another process is packing {self.target} with the same settings: wait until it "
                "ends"
            )
        return ConfigError(
            f"{self.target.parent} is not there, or another process has just finished "
            f"{self.target}: make the folder, or use the pack"
        )

    def _take_over(self) -> None:
        """Go on in a folder of the same store and settings; empty any other."""
        ours = {"version": VERSION, "store": self._store.identity}
        ours["settings"] = self._settings.as_dict()
        content = json.dumps(ours, sort_keys=True).encode()
        try:
            self.resumed = (self.path / PACKING_JSON).read_bytes() == content
        except OSError:
            self.resumed = False
        if self.resumed and (self.path / PACK_JSON).exists():
            self.finished = self.finish(open_pack(self.path, self._store))
            return
        for entry in list(os.scandir(self.path)):
            if entry.name == LOCK or (self.resumed and not entry.name.endswith(PART)):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            except OSError as error:
                raise failure(error, Path(entry.path)) from error
        if not self.resumed:
            write_whole(self.path / PACKING_JSON, content)

    def discard(self) -> None:
        """Remove the folder, because the same pack can never be finished."""
        shutil.rmtree(self.path, ignore_errors=True)

    def finish(self, info: PackInfo) -> PackInfo:
        """Write pack.json and give the folder its name; all arrays are written and fsynced.

        Returns:
            `info`, as it was read again.

        Raises:
            StoreError: the disk is full, or renaming failed.
        """
        write_whole(self.path / PACK_JSON, dump(info))
        found = open_pack(self.path, self._store)  # a pack that could not be read is never renamed
        try:
            for entry in list(os.scandir(self.path)):  # what only an unfinished pack has
                if entry.name not in _KEPT and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
            fsync_folder(self.path)
            os.rename(self.path, self.target)
            os.unlink(self.target / LOCK)
            fsync_folder(self.target.parent)
        except OSError as error:
            raise failure(error, self.target) from error
        return found
