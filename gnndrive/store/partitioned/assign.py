"""`assign`: the partition of each node of a store, as a durable file (HierBatching; MariusGNN).

    random   partitions of equal size, drawn at random (MariusGNN, EuroSys 2023, §5)
    ldg      linear deterministic greedy partitioning, repeated, within any memory
    metis    METIS, for graphs that fit in memory many times over
    file     partitions that the user has found (`GivenParts`)

Each method leaves durable files in the folder, and a call with the same arguments goes on after a
kill and ends with the same bytes. When not to use it: `gnndrive.partition` is for users.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.memory import require_memory
from gnndrive.common.progress import Progress
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import index_dtype
from gnndrive.store.partitioned import ldg, metis, symmetric
from gnndrive.store.partitioned.arrays import PART, map_part, remove, write_part, zeros
from gnndrive.store.partitioned.format import PARTS_MAX, PartitionSettings
from gnndrive.store.partitioned.symmetric import FIXED_BYTES, pointer_bytes
from gnndrive.store.reader import Store

NODES_A_PART = 8192
PARTS_LEAST, PARTS_MOST = 16, 65_536
PART_BYTES_LEAST = 4 << 20  # of rows of x, so that a partition is a few long reads
LISTS = "symmetric.lists"
TRAIN = "train"
_NAMES = "auto, metis, ldg, random"  # what a name that is no file may have been meant as
_CHUNK = 1 << 16
_STEP = 1 << 20
_NPY = b"\x93NUMPY"


def default_parts(store: Store) -> int:
    """The number of partitions of a homogeneous store if the user gives none: at least 16, at most
    65,536, and never more than nodes; but one has 8,192 nodes or more, and at least 4 MiB of rows
    of x."""
    nodes = store.num_nodes
    parts = nodes // NODES_A_PART
    if "x" in store.node_names:
        parts = min(parts, nodes * store.table("x").row_bytes // PART_BYTES_LEAST)
    return max(min(max(parts, PARTS_LEAST), PARTS_MOST, nodes), 1)


def choose_method(store: Store, memory: int) -> str:
    """What the method "auto" stands for: "metis" if pymetis can be imported and METIS fits into
    `memory` bytes even if no edge is there in both directions, else "ldg"."""
    fits = metis.memory_of(2 * store.num_edges) <= memory
    return "metis" if fits and metis.is_there() else "ldg"


def assign(
    store: Store, settings: PartitionSettings, folder: Path, memory: int, report: Progress
) -> Int32Array:
    """Find the partition of each node of a homogeneous store, or go on after a kill.

    Args:
        settings: the method is not "auto" (`choose_method`).
        folder: for `part.npy` and what is needed until it is complete; for one store and one
            `settings`, and one process at a time. With the method "file" `part.npy` is there
            already (`GivenParts.write`).
        memory: bytes that may be used, see `require_memory`.

    Returns:
        The partition of each node, int32 [nodes], mapped from `part.npy`, which is durable.
    """
    path, method, nodes = folder / PART, settings.method, store.num_nodes
    if not path.exists():
        assert method in ("random", "ldg", "metis")
        _check(store, settings, memory)
        with store.unchanged():
            if method == "random":
                write_part(path, nodes, [_random(store, settings, report)])
            else:
                _assign_by_edges(store, settings, folder, memory, report)
    for each in list(folder.iterdir()):
        if each.name.startswith((f"{PART}.", LISTS, metis.OUT)):
            remove(each)
    part = map_part(path, nodes)
    if method == "file":
        _warn_of_empty(part, settings.parts)
    return part


def _check(store: Store, settings: PartitionSettings, memory: int) -> None:
    nodes, method = store.num_nodes, settings.method
    if settings.train_first and method != "random":
        raise ConfigError(
            f"train_first is for method='random', and method={method!r} decides alone where a node "
            "goes: leave one of them out"
        )
    if method == "random":
        least = (np.dtype(index_dtype(nodes)).itemsize + 4 + 1) * nodes + 64 * _CHUNK
    else:
        later = ldg.memory_of(nodes, settings.parts)
        least = pointer_bytes(store) + max(symmetric.memory_of(nodes), later)
    require_memory(
        memory, FIXED_BYTES + least, f"to partition {nodes:,} nodes with method={method!r}"
    )


def _assign_by_edges(
    store: Store, settings: PartitionSettings, folder: Path, memory: int, report: Progress
) -> None:
    nodes, parts, by_metis = store.num_nodes, settings.parts, settings.method == "metis"
    if by_metis:
        metis.check_there()
    later = ldg.memory_of(nodes, parts)
    lists = symmetric.symmetric_lists(store, folder / LISTS, memory, report, later, by_metis)
    if by_metis:
        part = metis.assign_metis(lists, folder, nodes, parts, settings.seed, memory, report)
        write_part(folder / PART, nodes, [part])
    else:
        ldg.assign_ldg(lists, folder, nodes, parts, report)


def _warn_of_empty(part: Int32Array, parts: int) -> None:
    sizes = np.bincount(part, minlength=parts)
    if empty := parts - int(np.count_nonzero(sizes)):
        warnings.warn(
            f"{empty:,} of {parts:,} given partitions are empty: give fewer parts, or number the "
            "others from 0, if that was not meant",
            stacklevel=3,
        )


# ---- drawn at random


def _random(store: Store, settings: PartitionSettings, report: Progress) -> Int32Array:
    """Assign each node to a random partition; those of the split "train" fill the first ones, if
    they are to. The order depends on the seed and the number of nodes only (native/shuffle.c)."""
    nodes, parts = store.num_nodes, settings.parts
    part = np.empty(nodes, np.int32)
    is_first = np.zeros(nodes, np.bool_)
    if settings.train_first:
        is_first[_training_nodes(store)] = True
    at, others_at = 0, int(np.count_nonzero(is_first))
    done = 0
    for drawn in _shuffled(nodes, settings.seed):
        mine = is_first[drawn]
        for chosen, start in ((drawn[mine], at), (drawn[~mine], others_at)):
            part[chosen] = (start + np.arange(len(chosen))) * parts // nodes
        ahead = int(np.count_nonzero(mine))
        at, others_at, done = at + ahead, others_at + len(drawn) - ahead, done + len(drawn)
        report("dividing nodes at random", done, nodes)
    return part


def _training_nodes(store: Store) -> Int64Array:
    if TRAIN not in store.split_names:
        known = ", ".join(store.split_names) or "none"
        raise ConfigError(
            f"train_first: {store.path} has no split {TRAIN!r}, its splits are: {known}; import it "
            "with splits=, or leave train_first out"
        )
    found: Int64Array = store.nodes().stored_split(TRAIN).numpy()
    return found


def _shuffled(nodes: int, seed: int) -> Iterator[Int64Array]:
    """All nodes in random order, in chunks."""
    moved = zeros(nodes, index_dtype(nodes))
    moving = ffi.cast("void *", moved.ctypes.data)
    key = ffi.cast("int64_t", seed & (1 << 64) - 1)
    for start in range(0, nodes, _CHUNK):
        drawn = np.empty(min(_CHUNK, nodes - start), np.int64)
        lib.gd_shuffle(moving, moved.itemsize, nodes, key, start, len(drawn), pointer(drawn))
        yield drawn


# ---- found by the user


class GivenParts:
    """The partition of each node, from the user; ConfigError: there is not one for each of `nodes`.

    Attributes:
        path: the file, or what stands for it in errors.
        parts: the largest number + 1.
        digest: the SHA-256 of the numbers, as int32, whatever they came in.
    """

    def __init__(self, source: Any, nodes: int) -> None:
        is_path = isinstance(source, str | os.PathLike)
        self.path = Path(source) if is_path else "the array of partitions"
        self._numbers = _read(Path(source), nodes) if is_path else np.asarray(source)
        found = self._numbers
        if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != nodes:
            raise ConfigError(
                f"{self.path} holds {found.dtype} {list(found.shape)}: give whole numbers "
                f"[{nodes}], the partition of each node in the order of their ids"
            )
        self.parts, digest = 0, sha256()
        for block in self._blocks():
            self.parts = max(self.parts, int(block.max()) + 1)
            digest.update(block.data)
        self.digest = digest.hexdigest()

    def write(self, folder: Path) -> None:
        """Write them where `assign` looks for the partitions of an earlier call."""
        if not (folder / PART).exists():
            write_part(folder / PART, len(self._numbers), self._blocks())

    def _blocks(self) -> Iterator[Int32Array]:
        for start in range(0, len(self._numbers), _STEP):
            block = np.asarray(self._numbers[start : start + _STEP])
            least, most = int(block.min()), int(block.max())
            if least < 0 or most >= PARTS_MAX - 1:
                at = start + int(np.argmin(block) if least < 0 else np.argmax(block))
                raise ConfigError(
                    f"{self.path} has a number below 0 or above {PARTS_MAX - 2}, "
                    f"{least if least < 0 else most} of node {at}: give the partition of each "
                    "node, counted from 0"
                )
            yield block.astype("<i4")


def _read(path: Path, nodes: int) -> npt.NDArray[Any]:
    try:
        with open(path, "rb") as file:
            is_npy = file.read(len(_NPY)) == _NPY
        if is_npy:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        return np.loadtxt(path, np.int64, ndmin=1, max_rows=nodes + 1)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"method={str(path)!r} is neither one of {_NAMES} nor a file of partitions that can "
            f"be read ({error}): give a .npy file of whole numbers, or a text with one number on "
            "each line"
        ) from None
