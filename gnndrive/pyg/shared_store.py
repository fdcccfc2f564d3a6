"""What the processes of one host share of a store: index pointers, labels, and packed indices.

One process reads them into shared memory (`publish`) and sends the descriptors of the memories with
a description in JSON. The others map them (`attach`) and read nothing, so that R ranks on a host
hold the topology once and a further rank starts in milliseconds.

The values were checked by the process that read them, which runs as the same user; `attach` checks
that every array has the place, the dtype and the size that the store asks for, so that a message
of another version, or for another store, is an error and no crash.

When not to use it: for features, whose rows come through the feature buffer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.common.records import EdgeKey, TopologyChoice
from gnndrive.common.shared_memory import ALIGNED, SharedArray, SharedArrays, SharedMemory
from gnndrive.pyg import labels
from gnndrive.sampling.graph import Adjacency, graph_size, graph_sizes
from gnndrive.sampling.topologies.base import IndicesInMemory, Topology
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name

_WHERE = "the message that describes shared memory"
_MEND = "end all processes of this run and start them again with the same version of gnndrive"


@dataclass(frozen=True, slots=True)
class AttachedArrays:
    """What `attach` found; these arrays keep the memory mapped.

    Attributes:
        indices: all indices by edge type, for `Adjacency`; empty if the topology shares none.
        labels: by the labels' full name, for `Collate.use_labels`.
    """

    indices: Mapping[EdgeKey, IndicesInMemory]
    labels: Mapping[str, labels.SharedLabels]


class PublishedStore:
    """A store's arrays in shared memory, in the process that read them; made by `publish`.

    Attributes:
        description: what `attach` needs beside the descriptors; fit for JSON.
    """

    def __init__(self, identity: str, arrays: SharedArrays, described: list[SharedArray]) -> None:
        self._arrays = arrays
        self.description: dict[str, Any] = {
            "store": identity,
            "memories": [memory.nbytes for memory in arrays.memories],
            "arrays": list(map(asdict, described)),
        }

    @property
    def fds(self) -> list[int]:
        """The descriptors to send, in order; valid until `close`."""
        return [memory.fd for memory in self._arrays.memories]

    @property
    def nbytes(self) -> int:
        """Bytes of all memories."""
        return sum(memory.nbytes for memory in self._arrays.memories)

    def close(self) -> None:
        """Close the descriptors and free the memory that no array uses; idempotent."""
        self._arrays.close()

    def __enter__(self) -> PublishedStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def publish(store: Store, choice: TopologyChoice) -> PublishedStore:
    """Read what processes share of a store into shared memory; indices, if the topology of `choice`
    keeps all in memory. The store uses the shared index pointers from now on."""
    arrays = SharedArrays("store")
    try:
        described = [
            *_publish_pointers(store, arrays),
            *_publish_labels(store, arrays),
            *_publish_indices(store, arrays, choice),
        ]
        return PublishedStore(store.identity, arrays, described)
    except MemoryError as error:
        arrays.close()
        raise ConfigError(
            f"the graph of {store.path} does not fit into memory that processes share ({error}); "
            'topology="direct" needs the least'
        ) from error
    except BaseException:
        arrays.close()
        raise


def _publish_pointers(store: Store, arrays: SharedArrays) -> list[SharedArray]:
    arrays.reserve(size.index_pointer_bytes for size in graph_sizes(store))
    found = {each.type: store.read_pointers(each.type, arrays.empty) for each in store.all_edges()}
    store.use_pointers(found)
    return [arrays.describe(_pointers(type), pointers) for type, pointers in found.items()]


def _publish_labels(store: Store, arrays: SharedArrays) -> list[SharedArray]:
    described, nodes = [], store.all_nodes()
    arrays.reserve(map(labels.kept_bytes, nodes))
    for each in nodes:
        kept = labels.read_labels(each, arrays.empty)
        if kept is not None:
            described.append(arrays.describe(each.name_of(labels.NAME), kept))
    return described


def _publish_indices(
    store: Store, arrays: SharedArrays, choice: TopologyChoice
) -> list[SharedArray]:
    kind: type[Topology] = find("topologies", choice.kind)
    if not kind.shares_indices:
        return []
    described, edges = [], store.all_edges()
    arrays.reserve(size.packed_bytes for size in graph_sizes(store))
    adjacency = Adjacency(edges, choice, 0, allocate=arrays.allocate)
    for each, topology in zip(edges, adjacency.topologies, strict=True):
        found = topology.in_memory
        assert found is not None
        described.append(arrays.describe(_indices(each.type), found.array, found.bits))
    adjacency.close()
    return described


def _pointers(type: EdgeKey) -> str:
    return array_name("graph", type, "indptr")


def _indices(type: EdgeKey) -> str:
    return array_name("graph", type, "indices")


def attach(store: Store, description: Any, fds: Sequence[int]) -> AttachedArrays:
    """Map what another process has published of the same store.

    The store uses the shared index pointers from now on (see `MappedArrays.use_pointers`).

    Args:
        description: `PublishedStore.description`, as it arrived.
        fds: the descriptors that came with it, in order; this call closes them, also if it fails.

    Raises:
        StoreError: the description is damaged or of another store.
        ConfigError: a memory is not what the description says.
    """
    left = list(fds)
    try:
        sizes, described = _parse(store, description, len(left))
        memories = []
        for nbytes in sizes:
            memories.append(SharedMemory.attach(left.pop(0), nbytes, huge=True).array)
    finally:
        for fd in left:
            with contextlib.suppress(OSError):
                os.close(fd)
    arrays = {name: _view(memories, array) for name, array in described.items()}
    store.use_pointers({each.type: arrays[_pointers(each.type)] for each in store.all_edges()})
    indices = {
        each.type: IndicesInMemory(arrays[name], described[name].bits)
        for each in store.all_edges()
        if (name := _indices(each.type)) in arrays
    }
    kept = [each for each in store.all_nodes() if labels.kept_dtype(each) is not None]
    names = [each.name_of(labels.NAME) for each in kept]
    return AttachedArrays(indices, {name: labels.SharedLabels(arrays.get(name)) for name in names})


def _view(memories: Sequence[npt.NDArray[np.uint8]], array: SharedArray) -> npt.NDArray[Any]:
    dtype = np.dtype(array.dtype)
    end = array.offset + array.count * dtype.itemsize
    return memories[array.memory][array.offset : end].view(dtype)


_Form = tuple[str, int, int]
"""The dtype, the count and the bits of a `SharedArray`."""


def _allowed(store: Store) -> dict[str, list[_Form]]:
    """The forms that each array of a store may have."""
    allowed: dict[str, list[_Form]] = {}
    for edges in store.all_edges():
        size, pointer_dtype = graph_size(edges), np.dtype(store.pointer_dtype(edges.type))
        allowed[_pointers(edges.type)] = [(pointer_dtype.name, size.nodes + 1, 0)]
        allowed[_indices(edges.type)] = [
            ("uint8", size.packed_bytes, size.packed_bits),
            (edges.indices_file.dtype, size.edges, 0),
        ]
    for nodes in store.all_nodes():
        dtype = labels.kept_dtype(nodes)
        if dtype is not None:
            allowed[nodes.name_of(labels.NAME)] = [(dtype.name, nodes.num_nodes, 0)]
    return allowed


def _parse(
    store: Store, description: Any, descriptors: int
) -> tuple[list[int], dict[str, SharedArray]]:
    """The sizes of the memories and the arrays by name, each of a form that the store allows."""
    top = Record(description, _WHERE, _MEND)
    if top.text("store") != store.identity:
        raise top.error(f"is of another store than {store.path}")
    sizes = top.value("memories", list)
    if len(sizes) != descriptors or not all(type(size) is int and size > 0 for size in sizes):
        raise top.error(f"has 'memories' that are not the sizes of {descriptors} memories")
    allowed, arrays = _allowed(store), dict[str, SharedArray]()
    # Labels that are not kept here, because this process has set others.
    ignored = {nodes.name_of(labels.NAME) for nodes in store.all_nodes()} - set(allowed)
    for record in top.each("arrays").values():
        array = _parse_array(record, sizes)
        if array.name in ignored:
            continue
        if array.name in arrays or array.name not in allowed:
            raise record.error("has a 'name' that is not expected")
        if (array.dtype, array.count, array.bits) not in allowed[array.name]:
            raise record.error(f"is no {array.name} of {store.path}")
        if array.offset + array.count * np.dtype(array.dtype).itemsize > sizes[array.memory]:
            raise record.error("ends outside of its memory")
        arrays[array.name] = array
    for edges in store.all_edges():
        if _pointers(edges.type) not in arrays:
            raise top.error(f"has no {_pointers(edges.type)}")
    return sizes, arrays


def _parse_array(record: Record, sizes: Sequence[int]) -> SharedArray:
    texts = {name: record.text(name) for name in ("name", "dtype")}
    numbers = {
        field.name: record.whole(field.name)
        for field in fields(SharedArray)
        if field.name not in texts
    }
    array = SharedArray(**texts, **numbers)  # type: ignore[arg-type]
    if array.memory >= len(sizes) or array.offset % ALIGNED:
        raise record.error("has a 'memory' or an 'offset' that cannot be")
    return array
