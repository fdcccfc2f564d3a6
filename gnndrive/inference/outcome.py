"""Where a computation's files lie, and what becomes of its last layer.

In a store, the attribute h has the folder `derived/h/`; elsewhere the user names a folder (`out=`).
A computation works in a folder below, named after all that its result depends on (`run_key`), so
that it finds its own files again and no others'.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

from gnndrive.common.atomic_files import fsync_folder, replace_file
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import NodeKey
from gnndrive.inference.progress import RECORD, Record
from gnndrive.store.added import DERIVED, read_added, write_added
from gnndrive.store.format import ArrayInfo
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name, folder

KEY = "made-by.txt"  # `out/h.made-by.txt`: what made `out/h.npy`, and which files it made
_KEY_FORM = "[0-9a-f]{16}"
OF_BATCHES = (
    "edge_index", "n_id", "e_id", "batch_size", "input_id", "num_nodes", "num_sampled_nodes",
    "num_sampled_edges", "batch", "ptr",
)  # fmt: skip


class Outcome:
    """The files of one computation.

    Args:
        store: the graph.
        name: the attribute's name.
        out: the user's folder; None: the result is added to the store.
        key: the computation's key.

    Attributes:
        name: the attribute's name.
        root: the folder that belongs to this attribute; other computations' files may be there.
        base: the folder that arrays' files are relative to.
        working: the working folder, relative to `base`.

    Raises:
        ConfigError: the store has such an attribute of its own, or cannot have one of that name.
    """

    def __init__(self, store: Store, name: str, out: Path | None, key: str) -> None:
        self._store, self.name, self._out, self._key = store, name, out, key
        if name in OF_BATCHES:
            raise ConfigError(f"name={name!r} is another part of a loader's batches: give another")
        for nodes in store.all_nodes():
            full = array_name("nodes", nodes.type, name)
            store.info.types.place(full)  # complains about names that a store cannot have
            if out is None and full in store.info.own.arrays:
                raise ConfigError(
                    f"name={name!r}: the store has {full} of its own, which is never replaced: "
                    "give another name"
                )
        self.root = store.path / DERIVED / name if out is None else out
        self.base = store.path if out is None else out
        self.working = f"{DERIVED}/{name}/{key}" if out is None else f".{name}-{key}"

    @property
    def in_store(self) -> bool:
        """Whether the result is added to the store, which keeps checksums."""
        return self._out is None

    @property
    def folder(self) -> Path:
        """The working folder."""
        return self.base / self.working

    def is_there(self, overwrite: bool) -> bool:
        """Whether its result is there. Otherwise remove what others left unfinished.

        Raises:
            ConfigError: another result is there, or a file of the user's, and `overwrite` is False.
        """
        made, files = self._made_by()
        if made == self._key:
            if all(each.is_file() for each in files):
                return True
        elif not overwrite and (made is not None or self._has_other_files()):
            where = self._out or self._store.path
            raise ConfigError(
                f"{where} has {self.name!r} of another model or program, or made with other "
                "arguments: give overwrite=True (--overwrite) to replace it, or another name"
            )
        for other in self._others(made):
            warnings.warn(
                f"removing {other}, an unfinished computation of another model or with other "
                "arguments",
                RuntimeWarning,
                stacklevel=4,
            )
            shutil.rmtree(other, ignore_errors=True)
        return False

    def finish(self, arrays: Sequence[tuple[NodeKey, ArrayInfo]]) -> None:
        """Make the last layer the result, and remove the working files.

        Args:
            arrays: for each node type that has rows, the finished array.

        Raises:
            StoreError: the folder cannot be written to.
        """
        try:
            if self._out is None:
                self._add([info for _, info in arrays])
            else:
                self._move(self._out, arrays)
        except OSError as error:
            raise StoreError(
                f"{self.root} cannot be written ({error.strerror or error}): free some space or "
                "check the disk, and run the same again; it goes on where it stopped"
            ) from error

    def _add(self, infos: Sequence[ArrayInfo]) -> None:
        own = self._store.info.own
        old, _ = self._made_by()
        arrays = {(self.base / info.file).parent for info in infos}
        for each in (*arrays, self.folder, self.root, self._store.path):
            fsync_folder(each)
        write_added(self._store.path, own, self.name, self._key, infos)
        if old is not None and old != self._key:
            shutil.rmtree(self.root / old, ignore_errors=True)
        for each in self.folder.glob("layer-*"):
            shutil.rmtree(each, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(self.folder / RECORD)

    def _move(self, out: Path, arrays: Sequence[tuple[NodeKey, ArrayInfo]]) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._key_file(out))
        made = [self._key]
        for type, info in arrays:
            place = out / folder(type) / f"{self.name}.npy"
            place.parent.mkdir(exist_ok=True)
            if (out / info.file).exists():  # else it was moved before a kill
                os.replace(out / info.file, place)
            fsync_folder(place.parent)
            made.append(str(place.relative_to(out)))
        replace_file(self._key_file(out), lambda file: file.write("\n".join(made).encode()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _key_file(self, out: Path) -> Path:
        return out / f"{self.name}.{KEY}"

    def _made_by(self) -> tuple[str | None, list[Path]]:
        """The key of the computation whose result is there, None if there is none; its files."""
        if self._out is not None:
            with contextlib.suppress(OSError):
                content = self._key_file(self._out).read_text("utf-8", "replace")
                key, *files = content.split("\n")
                return key, [self._out / each for each in files]
            return None, []
        if not os.path.lexists(self.root.with_name(f"{self.name}.json")):
            return None, []
        arrays = read_added(self._store.path, self._store.info.own, self.name).values()
        key = next((Path(each.folder).name for each in arrays), "")
        return key, [self._store.path / each.file for each in arrays]

    def _has_other_files(self) -> bool:
        """Whether `out` has files that the result would replace and no computation of ours made."""
        if self._out is None or (self.folder / RECORD).exists():  # killed while it moved its files
            return False
        folders = [folder(nodes.type) for nodes in self._store.all_nodes()]
        return any((self._out / each / f"{self.name}.npy").exists() for each in folders)

    def _others(self, made: str | None) -> list[Path]:
        """Working folders of this attribute's other computations than this one and `made`."""
        mine = {self.folder.name, made}
        form = _KEY_FORM if self._out is None else rf"\.{re.escape(self.name)}-{_KEY_FORM}"
        return [
            each
            for each in sorted(self.root.iterdir())
            if each.name not in mine and re.fullmatch(form, each.name) and Record.load(each).layers
        ]
