"""Classes of nodes: a byte a node that says how likely a batch needs it; the highest most likely.

A policy with a `score` ranks rows by their classes (`buffer/policies/base.py`). Class 0 has the
nodes with score 0; the others are divided into 255 quantiles of all scores' sum, so that each class
has about the same part of all uses. The classes of the hottest nodes are therefore small, which
matters in a small buffer. Quantiles by rank serve large buffers as well and small ones worse: 2.9
and not 3.9 % hits with 10,000 of 10 million rows.

The first use of a score reads the graph; the classes are then kept in the store's folder, in
`classes/SCORE.npy`, or `classes/TYPE/SCORE.npy` in a heterogeneous store (`cache.py`). If the
folder cannot be written to, the classes that were made last stay in this process.
"""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.file_lock import locked
from gnndrive.common.forks import ForkLock
from gnndrive.common.progress import report
from gnndrive.common.records import NodeKey, ends_of
from gnndrive.store.cache import load_array, make_folder, save_array
from gnndrive.store.layout.table_parts import TableParts
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges

Classes: TypeAlias = npt.NDArray[np.uint8]

FOLDER = "classes"
RANKING = "ranking rows"  # for progress
_VERSION = 1
_BLOCK = 1 << 18
_BIN_BITS = 16  # a bin: the leading bits of a score as float32, its exponent and 7 of its fraction
_making = ForkLock()
_in_use: WeakValueDictionary[str, Classes] = WeakValueDictionary()  # of this process, by key
# Of the last score of a store whose folder cannot be written to; empty, or one entry.
_unsaved: dict[str, dict[NodeKey, Classes]] = {}
_warned: set[tuple[Path, str]] = set()  # stores whose folder cannot be written to


def row_classes(store: Store, node_type: NodeKey, score: str) -> Classes:
    """The classes of the nodes of a type, uint8 [nodes], read-only; nodes with higher scores have
    no lower class.

    The first call for a store reads its graph: once for "degree", three times for "pagerank". That
    takes seconds to a minute; do not call it in an event loop.

    Raises:
        ConfigError: there is no such score in `SCORES`, or too many files are open.
        StoreError: the graph is damaged or cannot be read.
        ReadError: the disk failed.
    """
    if score not in SCORES:
        raise ConfigError(f"there is no score {score!r} of rows; there are: {', '.join(SCORES)}")
    with _making:
        found = kept_classes(store, node_type, score)
        if found is None:
            with contextlib.ExitStack() as until_made:
                if _lock(store, score, until_made):  # another process may have made it meanwhile
                    found = kept_classes(store, node_type, score)
                if found is None:
                    found = _make(store, score)[node_type]
        _in_use[_key(store, node_type, score)] = found
    return found


def kept_classes(store: Store, node_type: NodeKey, score: str) -> Classes | None:
    """The classes of the nodes of a type, if they were made before; None: `row_classes` would read
    the graph."""
    key = _key(store, node_type, score)
    found = _in_use.get(key)
    if found is None:
        found = _unsaved.get(_key(store, None, score), {}).get(node_type)
    if found is None:
        count = store.nodes(node_type).num_nodes
        found = load_array(store, _file(node_type, score), "uint8", count, key)
        if found is None or len(found) < count:
            return None
        found.flags.writeable = False
    return found


def copy_classes(store: Store, shard: Store) -> None:
    """Keep the classes that a store has in a shard's folder too, if that can be written to."""
    for score in SCORES:
        for type in store.info.types.nodes:
            classes = kept_classes(store, type, score)
            if classes is not None:
                with contextlib.suppress(OSError):
                    save_array(shard, _file(type, score), classes, _key(store, type, score))


def classes_of(scores: npt.NDArray[np.uint32] | npt.NDArray[np.float32]) -> Classes:
    """Divide scores, at least 0, into classes, uint8: 0 for score 0; else 1 + 255 * (the part of
    the scores' sum that lower scores have). Scores that differ by less than 0.8 % may have the same
    class."""
    blocks = range(0, len(scores), _BLOCK)
    sums = np.zeros(1 << _BIN_BITS)
    for at in blocks:
        block = scores[at : at + _BLOCK]
        sums += np.bincount(_bins(block), weights=block, minlength=len(sums))
    lower = np.cumsum(sums) - sums
    class_of_bin = np.minimum(1 + 255 * lower / max(sums.sum(), 1e-300), 255).astype(np.uint8)
    class_of_bin[0] = 0
    classes = np.empty(len(scores), np.uint8)
    for at in blocks:
        classes[at : at + _BLOCK] = class_of_bin[_bins(scores[at : at + _BLOCK])]
    return classes


def _bins(scores: npt.NDArray[np.uint32] | npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    bits: npt.NDArray[np.uint32] = scores.astype(np.float32).view(np.uint32)
    return bits >> np.uint32(32 - _BIN_BITS)


def _make(store: Store, score: str) -> dict[NodeKey, Classes]:
    """Read the graph, and keep the classes of all types."""
    with store.unchanged():
        scores = SCORES[score](store)
    made: dict[NodeKey, Classes] = {}
    for type in list(scores):
        made[type] = classes_of(scores.pop(type))
        made[type].flags.writeable = False
    try:
        for type, classes in made.items():
            save_array(store, _file(type, score), classes, _key(store, type, score))
    except OSError as error:
        _unsaved.clear()
        _unsaved[_key(store, None, score)] = made
        _warn_unsaved(store, error)
    return made


def _warn_unsaved(store: Store, error: OSError) -> None:
    """Say once for each store that its classes cannot be kept."""
    if (known := (store.path, store.identity)) in _warned:
        return
    _warned.add(known)
    warnings.warn(
        f"the classes of rows cannot be kept in {store.path / FOLDER} ({error.strerror or error}): "
        "each process reads the whole graph at its start. Make the folder writable for one start, "
        "or give tuning=Tuning(policy='lru')",
        stacklevel=4,
    )


def _key(store: Store, type: NodeKey, score: str) -> str:
    text = f"gnndrive classes {_VERSION}\n{store.identity}\n{score}\n{type!r}\n"
    return sha256(text.encode()).hexdigest()


def _file(type: NodeKey, score: str) -> str:
    return f"{FOLDER}/{score}.npy" if type is None else f"{FOLDER}/{type}/{score}.npy"


def _lock(store: Store, score: str, until_made: contextlib.ExitStack) -> bool:
    """Have other processes wait until the classes are made; False: there can be no lock."""

    def say() -> None:
        warnings.warn(
            f"another process reads the graph of {store.path}; waiting for it", stacklevel=8
        )

    folder = store.path / FOLDER
    try:
        make_folder(folder)
        until_made.enter_context(locked(folder / f".{score}.lock", say))
    except (OSError, StoreError):
        return False
    return True


Scores = dict[NodeKey, npt.NDArray[Any]]
"""By node type: a score for each node, float32 or uint32 [nodes], at least 0."""

STEPS = 3  # of a walk
DAMPING = 0.85  # the probability that a walk goes on
_PART_BYTES = 8 << 20


def out_degrees(store: Store) -> Scores:
    """The out-degrees of the nodes of each type, uint32 [nodes], over all edge types; errors as for
    `row_classes`."""
    scores: Scores = {
        type: np.zeros(nodes.num_nodes, np.uint32) for type, nodes in store.info.types.nodes.items()
    }
    done = 0
    for edges in store.all_edges():
        degrees, width = scores[edges.source.type], edges.indices_file.row_bytes
        into = ffi.cast("uint32_t *", degrees.ctypes.data)
        for indices, count in _lists(edges):
            report(RANKING, done, store.num_edges)
            if lib.gd_count_out_degrees(indices, width, count, len(degrees), into):
                raise _damaged(edges)
            done += count
    report(RANKING, done, store.num_edges)
    return scores


def reverse_pagerank(store: Store) -> Scores:
    """The reverse PageRank of the nodes of each type, float32 [nodes], times their number; errors
    as for `row_classes`.

    A walk takes each edge type that leads to its node equally often. The nodes that no walk reaches
    have 0. It takes 8 bytes of memory for each node.
    """
    types = store.info.types
    leading = Counter(ends_of(type)[1] for type in types.edges)
    now: Scores = {
        type: np.ones(nodes.num_nodes, np.float32) for type, nodes in types.nodes.items()
    }
    for step in range(STEPS):
        # The walks that begin here are left out of the last step: they say nothing of the node.
        start = 1 - DAMPING if step < STEPS - 1 else 0.0
        next = {type: np.full(len(each), start, np.float32) for type, each in now.items()}
        for edges in store.all_edges():
            report(RANKING, step * store.num_edges, STEPS * store.num_edges)
            target = edges.target.type
            _step(edges, now[target], next[edges.source.type], DAMPING / leading[target])
        now = next
    return now


SCORES: dict[str, Callable[[Store], Scores]] = {
    "degree": out_degrees,
    "pagerank": reverse_pagerank,
}


def _step(edges: StoredEdges, now: npt.NDArray[Any], next: npt.NDArray[Any], share: float) -> None:
    """Add to `next` what a step along `edges` brings there."""
    pointers, file = edges.index_pointers, edges.indices_file
    csc = ffi.new("gd_csc *")
    csc.indptr, csc.indptr_bytes = ffi.cast("void *", pointers.ctypes.data), pointers.itemsize
    csc.index_bytes, csc.nodes, csc.edges = file.row_bytes, len(pointers) - 1, edges.num_edges
    walks = ffi.new("gd_walks *")
    walks.csc, walks.sources, walks.share = csc, len(next), share
    walks.now = ffi.cast("float *", now.ctypes.data)
    walks.next = ffi.cast("float *", next.ctypes.data)
    for indices, count in _lists(edges):
        code = lib.gd_walks_step(walks, indices, count)
        if code == -errno.ERANGE:
            raise _damaged(edges)
        check(code, "walks")


def _lists(edges: StoredEdges) -> Iterator[tuple[Any, int]]:
    """All entries of the lists of in-neighbours, in stretches: where they are, and how many."""
    file = edges.indices_file
    with closing(TableParts(file, _PART_BYTES).parts(0, file.row_count)) as parts:
        for part in parts:
            yield ffi.cast("void *", part.rows.ctypes.data), part.count


def _damaged(edges: StoredEdges) -> StoreError:
    return StoreError(
        f"{edges.indices_path} has an id of no node: run gnndrive verify, then copy or import the "
        "store again"
    )
