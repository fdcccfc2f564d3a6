"""`UnfinishedPack`: the hidden folder of a pack that is being made, or whose packer was killed.

`unfinished_packs` finds them, for lists of packs and for cleaning up. When not to use it: to go on
with one; the same call of `gnndrive.pack` does that (folder.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.errors import StoreError
from gnndrive.common.file_lock import is_free, try_lock
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.packed.folder import LOCK, PACKING, PACKING_JSON
from gnndrive.store.packed.format import GROUPS, INDEX, MEND, PACK_JSON
from gnndrive.store.packed.settings import PackSettings, parse_settings
from gnndrive.store.parsing import Record
from gnndrive.store.temporary_folders import size_of

_NAME = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{12}}{re.escape(PACKING)}", re.DOTALL)
_MARKS = {LOCK, PACKING_JSON, PACK_JSON}


@dataclass(frozen=True, slots=True)
class UnfinishedPack:
    """The folder of an unfinished pack.

    Attributes:
        path: the folder.
        target: the folder that the pack will have.
        nbytes: the bytes of its files; those of rows are reserved before rows are written.
        in_use: whether a process packs now, or that cannot be found out.
    """

    path: Path
    target: Path
    nbytes: int
    in_use: bool

    def settings(self) -> PackSettings | None:
        """What the pack is made with; None: that is not known."""
        where = str(self.path / PACKING_JSON)
        try:
            content = read_plain(self.path, PACKING_JSON, JSON_BYTES_MAX)
            top = Record.parse(content, where, PACKING_JSON, MEND)
            return parse_settings(Record(top.value("settings", dict), where, "settings", MEND))
        except (OSError, StoreError):
            return None

    def clean(self) -> bool:
        """Remove the folder; returns whether it is gone. It stays if a process packs again."""
        with contextlib.suppress(OSError):
            fd = try_lock(self.path / LOCK)
            try:
                # What says which pack it is goes first, so that no packer goes on with the rest.
                for name in (PACKING_JSON, PACK_JSON):
                    (self.path / name).unlink(missing_ok=True)
                for entry in list(os.scandir(self.path)):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    elif entry.name != LOCK:
                        os.unlink(entry.path)
                shutil.rmtree(self.path)
            finally:
                os.close(fd)
        return not os.path.lexists(self.path)


def unfinished_packs(folder: Path) -> list[UnfinishedPack]:
    """The unfinished packs in a folder, by name; folders in it are not searched.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        match = _NAME.fullmatch(entry.name)
        if match is None or not entry.is_dir(follow_symlinks=False):
            continue
        path = Path(entry.path)
        if _is_ours(path):
            held = (path / LOCK).exists() and not is_free(path / LOCK)
            found.append(UnfinishedPack(path, folder / match["name"], size_of(path), held))
    return found


def _is_ours(path: Path) -> bool:
    """Whether a packer made this folder, whose name could be another program's."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return False
    # A pack whose removal was interrupted may have lost its pack.json.
    return bool(names & _MARKS) or names <= {f"{INDEX}.npy", *GROUPS}
