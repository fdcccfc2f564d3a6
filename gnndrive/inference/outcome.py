"""Where a computation's files lie, and what becomes of its last layer.

In a store, the attribute h has the folder `derived/h/`; elsewhere the user names a folder (`out=`).
A computation works in a folder below, named after all that its result depends on (`run_key`), so
that it finds its own files again and no others'.

A result has a record, `derived/h.json` or `out/h.made-by.txt`, which is written when all of it is
durable: so what a record names is whole. The same call ends what a kill interrupted after that.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.small_files import fsync_folder, replace_file
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import NodeKey
from gnndrive.inference.progress import LOCK, RECORD, Record, sole_use
from gnndrive.store.added import DERIVED, added_names, read_added, write_added
from gnndrive.store.format import ArrayInfo
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name, folder

KEY = "made-by.txt"  # `out/h.made-by.txt`: what made `out/h.npy`, and which files it made
KEY_FORM = "[0-9a-f]{16}"
_NODES = "nodes"  # in a working folder: the result
_WORK = re.compile(rf"layer-\d+|\.?{re.escape(RECORD)}(\..+)?")  # what only work needs
OF_BATCHES = (
    "edge_index", "n_id", "e_id", "batch_size", "input_id", "num_nodes", "num_sampled_nodes",
    "num_sampled_edges", "batch", "ptr",
)  # fmt: skip


class Outcome:
    """The files of one computation. `out` is the user's folder; None: the result is added to the
    store. ConfigError: the store has such an attribute of its own, or cannot have one of that name.

    Attributes:
        root: the folder that belongs to this attribute; other computations' files may be there.
        base: the folder that arrays' files are relative to.
        working: the working folder, relative to `base`.
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
        """Whether its result is there. Otherwise remove what others left unfinished. ConfigError:
        another result is there, or a file of the user's, and `overwrite` is False."""
        made, files = self._made_by()
        if made == self._key:
            with self._writing():
                self._settle()
                if all(each.is_file() for each in files):
                    return True
                self._forget()
        elif not overwrite and (made is not None or self._has_other_files()):
            where = self._out or self._store.path
            raise ConfigError(
                f"{where} has {self.name!r} of another model or program, or made with other "
                "arguments: give overwrite=True to replace it, or another name"
            )
        for other in self._others(made):
            if Record.load(other).layers:
                warnings.warn(
                    f"removing {other}, an unfinished computation of another model or with other "
                    "arguments",
                    RuntimeWarning,
                    stacklevel=3,
                )
            shutil.rmtree(other, ignore_errors=True)
        return False

    def finish(self, arrays: Sequence[tuple[NodeKey, ArrayInfo]]) -> None:
        """Make the last layer the result, of the finished array of each node type that has rows,
        and remove the working files."""
        files = {(self.base / info.file).parent for _, info in arrays}
        with self._writing():
            for each in {*files, self.folder / _NODES, self.folder, self.root, self.base}:
                fsync_folder(each)
            if self._out is None:
                own, infos = self._store.info.own, [info for _, info in arrays]
                write_added(self._store.path, own, self.name, self._key, infos)
            else:
                made = [str(Path(folder(type), f"{self.name}.npy")) for type, _ in arrays]
                content = "\n".join([self._key, *made]).encode()
                replace_file(self._made_by_file, lambda file: file.write(content))
            self._settle()

    def give_up(self) -> None:
        """Remove the folders of a call that was refused before it made anything in them."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        with contextlib.suppress(OSError):
            if self._out is None and os.listdir(self.root) == [LOCK]:
                shutil.rmtree(self.root)
                self.root.parent.rmdir()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_failure(self.root, error) from error

    def _settle(self) -> None:
        """End what follows the result's record, which an earlier call may not have ended."""
        if self._out is not None:
            put_in_place(self._out, self.name, self._key)
            return
        for each in self._others(None):
            if not (each / RECORD).exists():  # a result that was replaced
                shutil.rmtree(each, ignore_errors=True)
        for each in rest_of_work(self.folder):
            remove(each)

    def _forget(self) -> None:
        """Remove the record of a result that has lost a file, before it is computed again. The
        record of work says that the files that are left are not the user's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        Record(self.folder / RECORD).save()
        os.unlink(self._made_by_file)

    @property
    def _made_by_file(self) -> Path:
        """The record of the result."""
        if self._out is None:
            return self.root.with_name(f"{self.name}.json")
        return self._out / f"{self.name}.{KEY}"

    def _made_by(self) -> tuple[str | None, list[Path]]:
        """The key of the computation whose result is there, None if there is none; its files."""
        if self._out is not None:
            with contextlib.suppress(OSError):
                content = self._made_by_file.read_text("utf-8", "replace")
                key, *files = content.split("\n")
                return key, [self._out / each for each in files]
            return None, []
        if not os.path.lexists(self._made_by_file):
            return None, []
        arrays = read_added(self._store.path, self._store.info.own, self.name).values()
        key = next((Path(each.folder).name for each in arrays), "")
        return key, [self._store.path / each.file for each in arrays]

    def _has_other_files(self) -> bool:
        """Whether `out` has files that the result would replace and no computation of ours made."""
        if self._out is None or (self.folder / RECORD).exists():  # see _forget
            return False
        folders = [folder(nodes.type) for nodes in self._store.all_nodes()]
        return any((self._out / each / f"{self.name}.npy").exists() for each in folders)

    def _others(self, made: str | None) -> list[Path]:
        """Working folders of this attribute's other computations than this one and `made`."""
        mine = {self.folder.name, made}
        form = KEY_FORM if self._out is None else rf"\.{re.escape(self.name)}-{KEY_FORM}"
        return [
            each
            for each in sorted(self.root.iterdir())
            if each.name not in mine and re.fullmatch(form, each.name) and is_working_folder(each)
        ]


def remove_result(store: Store, name: str) -> None:
    """Remove an attribute that `gnndrive.infer` added to a store, and what is left of its making.
    Its record goes first, so that a reader finds all of it or nothing; the same call ends what was
    killed. Open the store again to see it without the attribute.

    Raises:
        ConfigError: no such attribute was added, or another process computes it now.
        StoreError: it cannot be removed.
    """
    folder = store.path / DERIVED
    if name not in (added := added_names(store.path)) and not _has_rest(folder, name):
        _remove_if_empty(folder)
        raise ConfigError(
            f"{store.path} has no attribute {name!r} that gnndrive.infer added"
            f"{did_you_mean(name, added)}; it has: {', '.join(added) or 'none'}"
        )
    with sole_use(folder / name, "stop it"):
        try:
            (folder / f"{name}.json").unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{folder / name}.json cannot be removed ({error.strerror}): make {folder} "
                "writable, and run the same again"
            ) from error
        try:
            fsync_folder(folder)
            for each in (folder / name).iterdir():
                if each.name != LOCK:  # which goes last: it says that the rest is a computation's
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
            shutil.rmtree(folder / name)
        except OSError as error:
            raise StoreError(
                f"{folder / name} cannot be removed ({error.strerror}): check the disk, and run "
                f"gnndrive clean {shlex.quote(str(store.path.parent))}"
            ) from error
    _remove_if_empty(folder)


def _has_rest(folder: Path, name: str) -> bool:
    """Whether a computation, or a removal that was killed, has left the folder of an attribute."""
    with contextlib.suppress(OSError):
        if name in os.listdir(folder):
            names = os.listdir(folder / name)
            return LOCK in names or not names
    return False


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # other attributes lie in it
        folder.rmdir()


def is_working_folder(folder: Path) -> bool:
    """Whether a folder holds what a computation makes, or nothing; its name may be another's."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return False
    return all(each == _NODES or _WORK.fullmatch(each) for each in names)


def rest_of_work(folder: Path) -> list[Path]:
    """What a working folder holds beside the result."""
    return sorted(each for each in folder.glob("*") if _WORK.fullmatch(each.name))


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def put_in_place(out: Path, name: str, key: str) -> None:
    """Move the files of a result that has a record from its working folder, if it is there, into
    the user's folder."""
    working = out / f".{name}-{key}"
    for each in sorted((working / _NODES).rglob(f"{name}.npy")):
        place = out / each.relative_to(working / _NODES)
        place.parent.mkdir(exist_ok=True)
        os.replace(each, place)
        fsync_folder(place.parent)
    shutil.rmtree(working, ignore_errors=True)
