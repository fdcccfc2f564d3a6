"""Write a store into a temporary folder beside its path, fsync it and rename it: a store exists
whole or not at all.

Arrays are written in chunks, which are checked and hashed on the way, so a store can be far larger
than memory. `StoreWriter` is for arrays that are made piece by piece, `write_store` for arrays that
already exist. A store never changes; write another one.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from gnndrive.common.checked_json import is_plain_text
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.small_files import fsync_folder, write_durable
from gnndrive.common.io.write_errors import FULL, free_bytes
from gnndrive.common.memory import format_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, EdgeType, NodeKey
from gnndrive.store.checks import ClassCount, check_for, finite_rows_of
from gnndrive.store.convert import ArrayLike, Rows, as_rows, dtype_of, split_ids, to_storage
from gnndrive.store.format import (
    CHUNK_BYTES,
    DATA_OFFSET,
    STORE_JSON,
    AnyDType,
    ArrayInfo,
    StoreInfo,
    dtype_name,
    dump,
    fits,
    index_dtype,
    missing_arrays,
    npy_header,
)
from gnndrive.store.if_exists import Counts, IfExists, with_if_exists
from gnndrive.store.parsing import parse
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.store_view import OWN
from gnndrive.store.temporary_folders import REPLACED, TemporaryFolder, clear, remove
from gnndrive.store.types import NodeType, Types, array_name
from gnndrive.store.views import StoredEdges, StoredNodes

_MARGIN_BYTES = 1 << 20  # for folders, store.json and the file system's metadata
_OUTSIDE = "a StoreWriter works inside its with block: with StoreWriter(…) as writer"


class ArrayWriter:
    """One array of a store that is being written, its rows in order; made by `StoreWriter.array`.

    Attributes:
        info: the array's name, dtype and shape.
        rows_written: rows written so far.
    """

    def __init__(self, info: ArrayInfo, file: Path, store: StoreWriter) -> None:
        self.info, self.rows_written = info, 0
        self.finished: ArrayInfo | None = None  # with the checksum, once the last row is written
        self.num_classes = 0  # of a `y` whose last row is written
        self.gaps: str | None = None  # of its labels, see `ClassCount.gaps`
        self._where = str(store.path / info.file)
        self._check = check_for(info.name, self._where, store.types)
        place = store.types.place(info.name)
        self._classes = ClassCount() if (place.group, place.leaf) == ("nodes", "y") else None
        self.finite_rows = finite_rows_of(info, store.types)
        self._closed = False
        self._file = DirectWriter(
            file, checksum=True, failure=lambda error: store._failure(error, self._where)
        )
        try:
            self._file.append(npy_header(info))
            if info.shape[0] == 0:
                self._finish()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far."""
        return DATA_OFFSET + self.rows_written * self.info.row_bytes

    def write(self, rows: ArrayLike) -> None:
        """Write the next rows.

        Args:
            rows: [n, *row_shape], numpy, torch or a list, of a dtype whose values fit the array's.

        Raises:
            ConfigError: the rows have the wrong shape or are too many, a value does not fit, or the
                StoreWriter's with block has ended.
            StoreError: an index is out of range, or the disk is full.
        """
        if self._closed:
            raise ConfigError(_OUTSIDE)
        chunk = as_rows(rows, self._where)
        left = self.info.shape[0] - self.rows_written
        if tuple(chunk.shape[1:]) != self.info.shape[1:] or len(chunk) > left:
            raise ConfigError(
                f"{self._where}: rows of shape {list(chunk.shape)} do not fit: it is "
                f"{list(self.info.shape)}, of which {left} rows are not written yet"
            )
        if len(chunk) == 0:
            return
        if self._check is not None:  # before a value out of range could wrap in a narrower dtype
            dtype = dtype_of(chunk)
            if "int" not in dtype:
                raise ConfigError(
                    f"{self._where} holds indices and got {dtype}: give whole numbers"
                )
            self._check.feed(to_storage(chunk, dtype, self._where))
        values = to_storage(chunk, self.info.dtype, self._where)
        if self._classes is not None:
            self._classes.feed(chunk)
        self._file.append(values)
        if self.finite_rows is not None:  # last: a write reads a memory-mapped source fastest
            self.finite_rows.feed(values.reshape(-1))
        self.rows_written += len(chunk)
        if self.rows_written == self.info.shape[0]:
            self._finish()

    def close(self) -> None:
        """Close the file; nothing can be written afterwards. Idempotent."""
        self._closed = True
        self._file.close()

    def _finish(self) -> None:
        if self._check is not None:
            self._check.finish()
        self.finished = replace(self.info, sha256=self._file.finish())
        if self._classes is not None:
            self.num_classes, self.gaps = self._classes.result(), self._classes.gaps()


class StoreWriter:
    """Writes a store array by array; use it as a context manager.

    Leaving the block without an exception renames the store to `path`; leaving it with an exception
    removes all that was written.

    Args:
        path: the folder to make; its parent folder must exist.
        num_nodes: number of nodes; by type for a heterogeneous store.
        num_edges: number of directed edges; by (source, relation, target) for a heterogeneous one.
        made_by: a text that says how the store was made; characters that must not be printed
            become "?".
        overwrite: replace an existing store at `path`; anything else at `path` is never touched.
        progress: called by `write` as progress(array, bytes done, bytes in all).

    Attributes:
        values: see `StoreInfo.values`; may be set until the block is left.

    Raises:
        ConfigError: types that a store cannot have; on entering the block, `path` exists or its
            parent folder does not.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_nodes: int | Mapping[str, int],
        num_edges: int | Mapping[EdgeType, int],
        *,
        made_by: str = "gnndrive.StoreWriter",
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self.types = Types.of(num_nodes, num_edges)
        # made_by often names files, and file names may hold characters that must not be printed.
        self._made_by = "".join(letter if is_plain_text(letter) else "?" for letter in made_by)
        self._overwrite, self._progress = overwrite, progress
        self._classes: dict[NodeKey, tuple[str, ...]] = {}
        self.classes_min: dict[NodeKey, int] = {}  # of y, if it holds classes, by node type
        self.values: Mapping[NodeKey | EdgeKey, Mapping[str, Any]] = {}
        self._writers: dict[str, ArrayWriter] = {}
        self._bytes_expected = 0
        self._temporary: TemporaryFolder | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all types."""
        return self.types.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges, of all types."""
        return self.types.num_edges

    @property
    def folder(self) -> Path:
        """The folder that becomes the store; what else is put into it goes along."""
        if self._temporary is None:
            raise ConfigError(_OUTSIDE)
        return self._temporary.path

    def __enter__(self) -> Self:
        clear(self.path)
        self._check_target()
        try:
            self._temporary = TemporaryFolder(self.path)
        except OSError as error:
            raise self._failure(error, str(self.path)) from error
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self._commit()
        except OSError as failure:
            raise self._failure(failure, str(self.path)) from failure
        finally:
            for writer in self._writers.values():
                writer.close()
            temporary, self._temporary = self._temporary, None
            if temporary is not None:  # it is None after a commit, which has renamed the folder
                temporary.remove()

    def reserve(self, nbytes: int) -> None:
        """Check, before a long import, that the disk has room for `nbytes` of arrays in all.

        Raises:
            StoreError: the disk has less room.
        """
        self._bytes_expected = max(self._bytes_expected, nbytes)
        written = sum(writer.bytes_written for writer in self._writers.values())
        if max(0, nbytes - written) + _MARGIN_BYTES > free_bytes(self.path.parent):
            raise self._disk_full()

    def array(self, name: str, dtype: AnyDType, shape: Sequence[int]) -> ArrayWriter:
        """Begin an array; several may be written at the same time.

        Args:
            name: "nodes/x", "edges/edge_attr", "graph/indptr", …; of a heterogeneous store
                "nodes/paper/x", "graph/author__writes__paper/indptr", …
            dtype: numpy or torch dtype, or its name; "bfloat16" is allowed.
            shape: the whole array's shape, rows first.

        Raises:
            ConfigError: the name, dtype or shape is not allowed.
            StoreError: the disk has no room for the array.
        """
        folder = self.folder
        place = self.types.place(name)
        if name in self._writers:
            raise ConfigError(f"{name} was begun already: write each array once")
        if not self.types.hetero and place.group in (pair := ("nodes", "edges")):
            other = f"{pair[place.group == 'nodes']}/{place.leaf}"
            if other in self._writers:
                raise ConfigError(
                    f"{name} and {other}: a batch has one attribute of a name, as PyG's Data has: "
                    "rename one"
                )
        sizes = tuple(int(size) for size in shape)
        if not 1 <= len(sizes) <= 8 or min(sizes) < 0:
            raise ConfigError(
                f"{name}: shape {list(sizes)} is not allowed: give 1 to 8 sizes, rows first"
            )
        info = ArrayInfo(name, dtype_name(dtype), sizes, "")
        if not fits(info, self.types):
            raise ConfigError(
                f"{name} as {info.dtype} {list(sizes)} does not fit a store of {place.targets} "
                f"nodes and {place.edges} edges: indices are int64 (below 2**31 also int32), "
                f"index pointers and splits int64, other arrays have a row for each node or edge"
            )
        self.reserve(sum(writer.info.nbytes for writer in self._writers.values()) + info.nbytes)
        return self._begin(info, folder)

    def _begin(self, info: ArrayInfo, folder: Path) -> ArrayWriter:
        """Begin the file of an array in a folder; StoreError: it cannot be made."""
        file = folder / info.file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = self._writers[info.name] = ArrayWriter(info, file, self)
        except OSError as error:
            raise self._failure(error, str(self.path / info.file)) from error
        return writer

    def write(self, name: str, array: ArrayLike, dtype: AnyDType | None = None) -> None:
        """Write a whole array, about 64 MiB at a time.

        Args:
            name: as for `array`.
            array: numpy (memory-mapped too), torch or a list.
            dtype: as for `array`; None: the dtype that `array` has.

        Raises:
            ConfigError, StoreError: as `array` and `ArrayWriter.write`.
        """
        rows = as_rows(array, name)
        writer = self.array(name, dtype_of(rows) if dtype is None else dtype, rows.shape)
        item_bytes = max(rows.dtype.itemsize, writer.info.storage.itemsize, 4)
        step = max(1, CHUNK_BYTES // max(1, math.prod(rows.shape[1:]) * item_bytes))
        total = rows.shape[0] * writer.info.row_bytes
        for start in range(0, rows.shape[0], step):
            writer.write(rows[start : start + step])
            if self._progress is not None:
                self._progress(name, writer.rows_written * writer.info.row_bytes, total)

    def split(self, name: str, nodes: ArrayLike, node_type: str | None = None) -> None:
        """Write a split.

        Args:
            name: "train", "val", …
            nodes: node ids [n], kept in their order, or a bool mask [num_nodes].
            node_type: the nodes' type in a heterogeneous store.

        Raises:
            ConfigError: `nodes` is neither ids nor a mask.
            StoreError: an id is out of range.
        """
        full = array_name("splits", node_type, name)
        rows = as_rows(nodes, f"split {name!r}")
        self.write(full, split_ids(rows, self.types.place(full).sources, name), "int64")

    def classes(self, names: Sequence[str], node_type: str | None = None) -> None:
        """Name the classes of `y`.

        Args:
            names: the classes' names in the order of their ids.
            node_type: the nodes' type in a heterogeneous store.

        Raises:
            ConfigError: a name holds control characters.
        """
        for name in names:
            if not is_plain_text(name):
                raise ConfigError(f"class name {name!r} holds control characters: take them out")
        self.types.place(array_name("nodes", node_type, "y"))
        self._classes[node_type] = tuple(names)

    def _check_target(self) -> None:
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"the folder {self.path.parent} is not there: make it, or choose another"
            )
        if not os.path.lexists(self.path):
            return
        if not self._overwrite:
            raise ConfigError(path_exists(self.path))
        if os.path.ismount(self.path):
            raise ConfigError(
                f"{self.path} is a mount point, which cannot be replaced: choose a path inside it"
            )
        # Replacing must never delete a folder that is not a store.
        if not (self.path / STORE_JSON).is_file():
            raise ConfigError(
                f"{self.path} is not a store and is left as it is: choose another path"
            )

    def _commit(self) -> None:
        """Check that the store is complete, write store.json, sync and rename."""
        folder = self.folder
        arrays: dict[str, ArrayInfo] = {}
        for name, writer in self._writers.items():
            if writer.finished is None:
                raise ConfigError(
                    f"{name} has {writer.rows_written} of its {writer.info.shape[0]} rows: write "
                    "the rest"
                )
            arrays[name] = writer.finished
            if writer.finite_rows is not None and (remark := writer.finite_rows.remark) is not None:
                warnings.warn(
                    f"{remark}: replace them before the import (torch.nan_to_num(x)), or train "
                    "without them",
                    stacklevel=3,
                )
        for name in missing_arrays(arrays, self.types):
            raise ConfigError(f"{name} is not written: write it, because every store has a graph")
        info = self._info(arrays)
        content = dump(info)
        if parse(content, STORE_JSON) != info:
            raise AssertionError("store.json does not read back as it was written")
        for part in {parent for name in arrays for parent in Path(name).parents[:-1]}:
            fsync_folder(folder / part)
        write_durable(folder / STORE_JSON, content)  # last: a folder with a store.json is whole
        self._move_into_place(folder)

    def _info(self, arrays: Mapping[str, ArrayInfo]) -> StoreInfo:
        """What store.json says."""
        warn_own_names(arrays, self.types, self.values)
        nodes = {type: self._with_classes(type, nodes) for type, nodes in self.types.nodes.items()}
        return StoreInfo(Types(nodes, self.types.edges), self._made_by, arrays, self.values)

    def _with_classes(self, type: NodeKey, nodes: NodeType) -> NodeType:
        """A node type with the number of its classes and their names."""
        names = self._classes.get(type)
        y = self._writers.get(array_name("nodes", type, "y"))
        seen = 0 if y is None else y.num_classes
        if y is not None and y.gaps is not None and names is None:
            warnings.warn(f"{y.info.name}: {y.gaps}", stacklevel=2)
        least = self.classes_min.get(type, 0) if seen else 0
        return replace(nodes, num_classes=max(len(names or ()), seen, least), classes=names)

    def _move_into_place(self, folder: Path) -> None:
        """Rename the folder to the store's path; rename an old store before, remove it after."""
        self._check_target()
        old = None
        if self.path.exists():
            old = folder.with_suffix(".old")
            try:
                os.rename(self.path, old)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._replace_unmovable(folder)
                return
        try:
            os.rename(folder, self.path)
        except BaseException:
            if old is not None and not self.path.exists():
                os.rename(old, self.path)
            raise
        fsync_folder(self.path.parent)
        assert self._temporary is not None
        self._temporary.moved(self.path)
        self._temporary = None
        if old is not None:
            with contextlib.suppress(OSError):
                remove(old)

    def _replace_unmovable(self, folder: Path) -> None:
        """Replace an old store that cannot be renamed: remove it, then rename the folder.

        An overlay file system refuses to rename a folder of a lower layer, such as the image of a
        container. If this is interrupted, `temporary_folders.clear` ends it.
        """
        whole = folder.with_suffix(".new")
        os.rename(folder, whole)
        fsync_folder(self.path.parent)
        assert self._temporary is not None
        self._temporary.path, temporary = whole, self._temporary
        try:
            (self.path / REPLACED).touch()
            os.unlink(self.path / STORE_JSON)  # from here on, the new store is the one that counts
            self._temporary = None
            fsync_folder(self.path)
            remove(self.path)
            os.rename(whole, self.path)
        except BaseException as error:
            if self._temporary is not None:
                raise
            temporary.release()
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"the old store at {self.path} could not be removed ({error.strerror or error}); "
                f"the new one is whole in {whole}: see to that, and run gnndrive clean "
                f"{shlex.quote(str(self.path.parent))}"
            ) from error
        fsync_folder(self.path.parent)
        temporary.moved(self.path)

    def _disk_full(self) -> StoreError:
        needed, free = self._bytes_expected, free_bytes(self.path.parent)
        return StoreError(
            f"the disk is too full for {self.path}: the store needs "
            f"{format_size(needed, free)} and {format_size(free, needed)} are free; free "
            "some, or choose a path on another disk"
        )

    def _failure(self, error: OSError, where: str) -> StoreError:
        if error.errno in FULL:
            return self._disk_full()
        return StoreError(
            f"writing {where} failed ({error.strerror or error}): check the disk; nothing is left "
            "of the new store"
        )


def path_exists(path: str | os.PathLike[str]) -> str:
    """What an error says of a path at which there is something already."""
    return (
        f'{os.fspath(path)} exists: choose another path, or if_exists="replace"; '
        'if_exists="open" opens it'
    )


def warn_own_names(
    names: Iterable[str], types: Types, values: Mapping[NodeKey | EdgeKey, Iterable[str]]
) -> None:
    """Warn once if attributes have names of a store's own methods and properties, so that a program
    cannot reach them as `store.NAME`: `store.table` is a method. `names` are full names of arrays,
    `values` the names of values of the whole graph and of its types."""
    found = []
    for type, given in values.items():
        of_type = Store if type is None else StoredNodes if isinstance(type, str) else StoredEdges
        found += [name for name in given if hasattr(of_type, name) or name in OWN]
    for name in names:
        place = types.place(name)
        if place.group not in ("nodes", "edges"):
            continue
        view = StoredNodes if place.group == "nodes" else StoredEdges
        own = hasattr(view, place.leaf)
        if not types.hetero:
            own = place.leaf in OWN or hasattr(Store, place.leaf)
        if own:
            found.append(place.leaf)
    if found:
        given = ", ".join(sorted(set(found)))
        warnings.warn(
            f"a store has methods or properties of these names: {given}. Its attributes of these "
            "names are in batches, and here under store[NAME], not as store.NAME; to have them "
            "there too, give them other names before the import",
            stacklevel=3,
        )


def _counts(given: Mapping[str, Any]) -> Counts:
    arrays = _graph_arrays(given["indptr"], given["indices"], None)
    return {None: len(arrays["graph/indptr"]) - 1}, {None: len(arrays["graph/indices"])}


@with_if_exists(_counts)
def write_store(
    path: str | os.PathLike[str],
    *,
    indptr: ArrayLike,
    indices: ArrayLike,
    edge_id: ArrayLike | None = None,
    nodes: Mapping[str, ArrayLike],
    edges: Mapping[str, ArrayLike] | None = None,
    splits: Mapping[str, ArrayLike] | None = None,
    classes: Sequence[str] | None = None,
    made_by: str = "gnndrive.write_store",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write arrays as a store, chunk by chunk; large ones may be memory-mapped.

    Args:
        path: the folder to make.
        indptr: CSC index pointers, whole numbers [num_nodes + 1].
        indices: in-neighbours, whole numbers [num_edges]; those of node v are
            indices[indptr[v]:indptr[v + 1]].
        edge_id: the original number of the edge at each position of `indices`, a permutation
            [num_edges]; None: each edge's number is its position.
        nodes: per-node arrays [num_nodes, …] by name; "x" are features and "y" labels, as in PyG.
        edges: per-edge arrays [num_edges, …] by name, in the original order.
        splits: node ids [n] or bool masks [num_nodes] by name.
        classes: names of the classes of y, in the order of their ids.
        made_by: a text that says how the store was made.
        if_exists: if `path` exists, "error", "open" the store, or "replace" it. Of several
            processes with "open" or "replace" one writes; the others wait and open what it wrote.
            A store of another number of nodes or edges is not opened.
        progress: called as progress(array, bytes done, bytes in all).

    Returns:
        The open store.

    Raises:
        ConfigError: arguments do not fit together, or `path` exists.
        StoreError: an index is out of range, or the disk is full; nothing is left behind.
    """
    arrays = _graph_arrays(indptr, indices, edge_id)
    num_nodes, num_edges = arrays["graph/indptr"].shape[0] - 1, arrays["graph/indices"].shape[0]
    dtypes = {
        "graph/indptr": "int64",
        "graph/indices": index_dtype(num_nodes),
        "graph/edge_id": index_dtype(num_edges),
    }
    for group, given in (("nodes", nodes), ("edges", edges or {})):
        for name, rows in given.items():
            arrays[f"{group}/{name}"] = as_rows(rows, f"{group}/{name}")
    with StoreWriter(
        path, num_nodes, num_edges, made_by=made_by, overwrite=if_exists == "replace",
        progress=progress,
    ) as writer:  # fmt: skip
        infos = (
            ArrayInfo(name, dtypes.get(name, dtype_of(array)), tuple(array.shape), "")
            for name, array in arrays.items()
        )
        writer.reserve(sum(info.nbytes for info in infos))
        for name, array in arrays.items():
            writer.write(name, array, dtypes.get(name))
        for name, ids in (splits or {}).items():
            writer.split(name, ids)
        if classes is not None:
            writer.classes(classes)
    return open_store(writer.path)


def _graph_arrays(
    indptr: ArrayLike, indices: ArrayLike, edge_id: ArrayLike | None
) -> dict[str, Rows]:
    given = {"indptr": indptr, "indices": indices, "edge_id": edge_id}
    graph = {
        f"graph/{name}": as_rows(array, name) for name, array in given.items() if array is not None
    }
    for name, rows in graph.items():
        dtype = dtype_of(rows)
        if rows.ndim != 1 or ("int" not in dtype and len(rows)):
            raise ConfigError(f"{name} is {dtype} {list(rows.shape)}: give whole numbers [n]")
    if not len(graph["graph/indptr"]):
        raise ConfigError("indptr is empty: give one entry more than there are nodes")
    return graph
