"""`assign`: the partition of each node of a store, as a durable file (HierBatching; MariusGNN).

    random   partitions of equal size, drawn at random (MariusGNN, EuroSys 2023, §5)
    ldg      linear deterministic greedy partitioning, repeated, within any memory
    metis    METIS, for graphs that fit in memory many times over
    file     partitions that the user has found

Each method leaves durable files in the folder, and a call with the same arguments goes on after a
kill and ends with the same bytes. When not to use it: `gnndrive.partition` is for users.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.small_files import PART, write_whole
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import ArrayInfo, Progress, npy_header
from gnndrive.store.partitioned import ldg, metis, symmetric
from gnndrive.store.partitioned.arrays import map_part, remove_beginning, write_part, zeros
from gnndrive.store.partitioned.symmetric import FIXED_BYTES, pointer_bytes, require
from gnndrive.store.reader import Store

RANDOM = "random"  # the phase, for progress
_CHUNK = 1 << 16


def random_bytes(nodes: int) -> int:
    """Bytes that `assign_random` uses beside the buffers."""
    width = 4 if nodes < 1 << 31 else 8
    return (width + 4 + 1) * nodes + 64 * _CHUNK


def assign_random(
    nodes: int, parts: int, seed: int, report: Progress, first: Int64Array | None = None
) -> Int32Array:
    """Assign each node to a random partition.

    Args:
        nodes: how many nodes there are.
        parts: how many partitions.
        seed: decides.
        report: called as report("random", nodes done, nodes).
        first: distinct nodes that fill the first partitions, in random order; None: no such nodes.

    Returns:
        The partition of each node, int32 [nodes].
    """
    part = np.empty(nodes, np.int32)
    is_first = np.zeros(nodes, np.bool_)
    if first is not None:
        is_first[first] = True
    at, others_at = 0, int(np.count_nonzero(is_first))
    done = 0
    for drawn in _shuffled(nodes, seed):
        mine = is_first[drawn]
        for chosen, start in ((drawn[mine], at), (drawn[~mine], others_at)):
            part[chosen] = (start + np.arange(len(chosen))) * parts // nodes
        ahead = int(np.count_nonzero(mine))
        at, others_at, done = at + ahead, others_at + len(drawn) - ahead, done + len(drawn)
        report(RANDOM, done, nodes)
    return part


def _shuffled(nodes: int, seed: int) -> Iterator[Int64Array]:
    """All nodes in random order, in chunks."""
    width = 4 if nodes < 1 << 31 else 8
    moved = zeros(nodes, f"int{8 * width}")
    key = ffi.cast("int64_t", seed & (1 << 64) - 1)
    for start in range(0, nodes, _CHUNK):
        drawn = np.empty(min(_CHUNK, nodes - start), np.int64)
        moving = ffi.cast("void *", moved.ctypes.data)
        lib.gd_shuffle(moving, width, nodes, key, start, len(drawn), pointer(drawn))
        yield drawn


PARTS_MAX = 1 << 31
_NAMES = "auto, metis, ldg, random"  # what a name that is no file may have been meant as
_NPY = b"\x93NUMPY"
_STEP = 1 << 20


class GivenParts:
    """The partition of each node, from the user.

    Args:
        source: an array of whole numbers [nodes], or the path of a .npy file of one, or of a text
            with one number on each line, as METIS's programs write it. A text is read into memory.
        nodes: how many nodes the store has.

    Attributes:
        path: the file, or what stands for it in errors.
        parts: the largest number + 1.
        digest: the SHA-256 of the numbers, as int32, whatever they came in.

    Raises:
        ConfigError: these are not partitions of so many nodes.
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
        """Write them where `assign` looks for the partitions of an earlier call.

        Raises:
            StoreError: the disk is full, or writing failed.
            ConfigError: the file has changed.
        """
        if (folder / PART).exists():
            return
        with DirectWriter(folder / PART, whole=True) as writer:
            writer.append(npy_header(ArrayInfo("part", "int32", self._numbers.shape, "")))
            for block in self._blocks():
                writer.append(block)
            writer.finish()

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


NODES_A_PART = 8192
PARTS_LEAST, PARTS_MOST = 16, 65_536
PART_BYTES_LEAST = 4 << 20  # of rows of x, so that a partition is a few long reads
LISTS = "symmetric.lists"
METHOD = f"{PART}.method"
TRAIN = "train"


class Settings(Protocol):
    """What an assignment depends on, beside the store: fields of `PartitionSettings`."""

    @property
    def method(self) -> str:
        """How the partitions are found: "random", "ldg", "metis" or "file"."""

    @property
    def parts(self) -> int:
        """The number of partitions."""

    @property
    def train_first(self) -> bool:
        """Whether the nodes of the split "train" fill the first partitions."""

    @property
    def seed(self) -> int:
        """The seed of random choices."""


def default_parts(store: Store) -> int:
    """The number of partitions of a homogeneous store if the user gives none.

    A partition has 8,192 nodes or more, and at least 4 MiB of rows of x; but there are at least 16,
    at most 65,536, and never more partitions than nodes.
    """
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
    store: Store, settings: Settings, folder: Path, memory: int, report: Progress
) -> np.memmap[Any, np.dtype[np.int32]] | Int32Array:  # fmt: skip
    """Find the partition of each node of a homogeneous store, or go on after a kill.

    Args:
        store: the store.
        settings: how, and how many partitions. With the method "auto" the result depends on the
            memory of the first call, too (`choose_method`).
        folder: an existing folder for `part.npy` and what is needed until it is complete; for one
            store and one `settings`, and one process at a time. With the method "file" `part.npy`
            is there already (`GivenParts.write`).
        memory: bytes that may be used, see `budget`.
        report: called as report(phase, done, total).

    Returns:
        The partition of each node, int32 [nodes], mapped from `part.npy`, which is durable.

    Raises:
        ConfigError: the settings or the memory cannot work.
        StoreError: the store is damaged, or the disk is full.
        ReadError: the store cannot be read.
    """
    path = folder / PART
    if not path.exists():
        work = _Work(store, settings, folder, memory, report)
        method = _chosen(work) if settings.method == "auto" else settings.method
        _check(work, method)
        with store.unchanged():
            _METHODS[method](work)
    remove_beginning(folder, f"{PART}.", LISTS, metis.OUT)
    part = map_part(path, store.num_nodes)
    if settings.method == "file":
        _check_given(part, settings.parts)
    return part


def _chosen(work: _Work) -> str:
    """The method that "auto" stands for in this folder."""
    path = work.folder / METHOD
    if not path.exists():
        write_whole(path, choose_method(work.store, work.memory).encode())
    return path.read_text()


def _check_given(part: Int32Array, parts: int) -> None:
    """Check the number of partitions of the user's, and warn of empty ones."""
    sizes = np.bincount(part, minlength=parts) if len(part) else np.zeros(parts, np.int64)
    if len(sizes) > parts:
        raise ConfigError(
            f"parts={parts}, and a node is in partition {len(sizes) - 1}: give more parts"
        )
    empty = parts - int(np.count_nonzero(sizes))
    if empty:
        warnings.warn(
            f"{empty:,} of {parts:,} given partitions are empty: give fewer parts, or number the "
            "others from 0, if that was not meant",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of `assign`."""

    store: Store
    settings: Settings
    folder: Path
    memory: int
    report: Progress

    @property
    def nodes(self) -> int:
        return self.store.num_nodes

    @property
    def parts(self) -> int:
        return self.settings.parts

    def finish(self, part: Int32Array) -> None:
        """Write the partition of each node."""
        write_part(self.folder / PART, part)


def _check(work: _Work, method: str) -> None:
    nodes, parts = work.nodes, work.parts
    if method not in _METHODS:
        raise ConfigError(f"method={method!r}: give one of auto, {', '.join(_METHODS)}")
    if parts < 1 or (parts > max(nodes, 1) and method != "file"):
        raise ConfigError(
            f"parts={parts}: give a number from 1 to {nodes}, the number of nodes in "
            f"{work.store.path}"
        )
    if work.settings.train_first and method != "random":
        raise ConfigError(
            f"train_first is for method='random', and method={method!r} decides alone where a node "
            "goes: leave one of them out"
        )
    least = FIXED_BYTES + _LEAST[method](work.store, parts)
    require(work.memory, least, f"to partition {nodes:,} nodes with method={method!r}")


def _random(work: _Work) -> None:
    first = _training_nodes(work.store) if work.settings.train_first else None
    seed = work.settings.seed
    work.finish(assign_random(work.nodes, work.parts, seed, work.report, first))


def _training_nodes(store: Store) -> Int64Array:
    if TRAIN not in store.split_names:
        known = ", ".join(store.split_names) or "none"
        raise ConfigError(
            f"train_first: {store.path} has no split {TRAIN!r}, its splits are: {known}; import it "
            "with splits=, or leave train_first out"
        )
    found: Int64Array = store.nodes().stored_split(TRAIN).numpy()
    return found


def _lists(work: _Work, in_file: bool = False) -> symmetric.SymmetricLists:
    later = ldg.memory_of(work.nodes, work.parts)
    return symmetric.symmetric_lists(
        work.store, work.folder / LISTS, work.memory, work.report, later, in_file
    )


def _ldg(work: _Work) -> None:
    ldg.assign_ldg(_lists(work), work.folder, work.nodes, work.parts, work.report)


def _metis(work: _Work) -> None:
    metis.check_there()
    lists, seed = _lists(work, in_file=True), work.settings.seed
    part = metis.assign_metis(
        lists, work.folder, work.nodes, work.parts, seed, work.memory, work.report
    )
    work.finish(part)


def _file(work: _Work) -> None:
    raise ConfigError(
        "method='file' needs the partition of each node: give a file or an array of them"
    )


def _least_in_lists(store: Store, parts: int) -> int:
    nodes = store.num_nodes
    return pointer_bytes(store) + max(symmetric.memory_of(nodes), ldg.memory_of(nodes, parts))


_METHODS = {"metis": _metis, "ldg": _ldg, "random": _random, "file": _file}
_LEAST: dict[str, Callable[[Store, int], int]] = {
    "metis": _least_in_lists,
    "ldg": _least_in_lists,
    "random": lambda store, _: random_bytes(store.num_nodes),
    "file": lambda *_: 0,
}
