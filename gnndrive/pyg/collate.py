"""Make the `Data` or `HeteroData` that PyG's NeighborLoader gives from a sample and its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from operator import setitem
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import SamplerOutput

from gnndrive.buffer.devices.base import Device
from gnndrive.common.array_pool import Allocate, divided
from gnndrive.common.errors import ConfigError, GNNDriveError, StoreError
from gnndrive.common.ffi import widen
from gnndrive.common.records import (
    EdgeKey,
    Int32Array,
    Int64Array,
    NodeKey,
    Sample,
    Seeds,
    Subgraph,
)
from gnndrive.pyg import labels
from gnndrive.pyg.attributes import Attributes
from gnndrive.pyg.conversions import as_int64, edge_index, select
from gnndrive.store.feature_tables import NODE_FEATURES, FeatureTable, feature_tables
from gnndrive.store.format import torch_dtype

if TYPE_CHECKING:
    from gnndrive.store.reader import Store
    from gnndrive.store.views import StoredEdges, StoredNodes

Rows = Mapping[str, torch.Tensor]
"""Rows of the feature buffer's tables, in the order of a batch's nodes or edges."""
_NONE = np.empty(0, np.int64)
_BINARY = ("edge_label_index", "edge_label", "edge_label_time")
_TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")
"""Names of the metadata of PyG's edge samplers after the input_id: binary, and for triplets."""
_NO_PAIRS = dict.fromkeys(("edge_label_index", "edge_label_time"))  # deleted of triplets, as in PyG


class Collate:
    """Makes the batches of one loader.

    Args:
        transform: the user's, applied last.
        pin_memory: whether batches are pinned, if there is a CUDA device.
        feature_dtype: dtype of x in a batch; None: as it is stored. Stored integers are multiplied
            by the node attribute `x_scale` (a number or a row for each node), if the store has it.
        custom_cls: makes an empty batch; None: PyG's Data or HeteroData.
        attrs: names of the attributes that batches have; None: all of them.
        buffered: names of the tables whose rows come through the feature buffer, if they are those
            of attributes that batches have; None: all that can.

    Attributes:
        store: the store with the attributes that batches have.
        tables: the tables whose rows come through the feature buffer.
        version: the version of the store's overlay whose attributes batches have.
    """

    def __init__(
        self,
        store: Store,
        transform: Callable[[Any], Any] | None,
        pin_memory: bool,
        feature_dtype: torch.dtype | None = None,
        custom_cls: Callable[[], Any] | None = None,
        attrs: Sequence[str] | None = None,
        buffered: Container[str] | None = None,
    ) -> None:
        self._whole, self._buffered = store, buffered
        self._arguments = (transform, pin_memory, feature_dtype, custom_cls, attrs)
        self.version = store.overlay.version
        self.store = store = store if attrs is None else store.only(attrs)
        self.tables = tables = _buffered_tables(store, buffered)
        self._nodes = store.all_nodes()
        self._edges = store.all_edges()
        self._edges_of = {each.type: each for each in self._edges}
        self._set_here = _SetHere(store)
        self._custom_cls = custom_cls
        self._blank = HeteroData()  # what each batch is a copy of, if the store has types
        if store.is_hetero:
            self._set_here.describe(self._blank)
        # By edge type: the name in `numbers`.
        of_tables = {table.type: table.name for table in tables if table.of_edges}
        self._numbers_names = {
            each.type: of_tables.get(each.type, each.name_of("")) for each in self._edges
        }
        self._transform = transform
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._feature_dtype = feature_dtype
        self.attributes = Attributes(store)
        self._labels = {each.name_of(labels.NAME): labels.Labels(each) for each in self._nodes}
        # By type: the name, the full name and the labels, or None, of each attribute.
        self._fields = {
            each.name_of(""): [
                (name, each.name_of(name), self._labels.get(each.name_of(name)))
                for name in each.names
            ]
            for each in (*self._nodes, *self._edges)
        }

    def current(self, started: bool) -> Collate:
        """This object, or another if attributes of the store were set or deleted since it was made.
        `started`: whether the feature buffer is made for this object's tables; then they must not
        have changed."""
        if self.version == self._whole.overlay.version:
            return self
        other = self._again(self._buffered)
        if started and self.tables != other.tables:
            raise ConfigError(
                "x or edge_attr of the store was set or deleted after this loader's first batch, "
                "and its feature buffer is made: do it before, or make another loader"
            )
        return other

    def buffering(self, names: Collection[str] | None) -> Collate:
        """The same with fewer tables, by name, in the feature buffer (None: all of them); the rows
        of others are read as those of any other attribute."""
        same = self._buffered is names or self.tables == _buffered_tables(self.store, names)
        return self if same else self._again(None if names is None else frozenset(names))

    def _again(self, buffered: Container[str] | None) -> Collate:
        other = Collate(self._whole, *self._arguments, buffered)
        other.use_labels({name: each.shared for name, each in self._labels.items()})
        return other

    def use_labels(self, shared: Mapping[str, labels.SharedLabels | None]) -> None:
        """Use labels that another process has read, by their full name ("nodes/y"), until `close`;
        None: they are read here."""
        for name, given in shared.items():
            self._labels[name].use(given)

    def prepare(self) -> None:
        """Read the labels, so that the first batch need not wait for them; blocks. The batch that
        uses the labels raises errors, not this."""
        for each in self._labels.values():
            with suppress(GNNDriveError, MemoryError, OSError):
                each.read()

    def rows_of(
        self, sample: Sample | Subgraph, attributes: Attributes, empty: Allocate = np.empty
    ) -> dict[str, Int64Array]:
        """The rows that a sample needs, int64 [n] by table name; blocks to read edge numbers."""
        rows = {}
        for table in self.tables:
            if table.of_edges:
                numbers = self._edge_numbers(sample, cast(EdgeKey, table.type), attributes, empty)
                rows[table.name] = _NONE if numbers is None else numbers
            else:
                ids = _nodes_of(sample, cast(NodeKey, table.type))
                # A user's sampler or transform may name any.
                if isinstance(sample, Subgraph) and sample.ends is None and len(ids):
                    _check_range(ids, table)
                rows[table.name] = ids
        return rows

    def pick_together(
        self, samples: Sequence[Sample | Subgraph], numbers: Sequence[dict[str, Int64Array]],
        rows: Sequence[dict[str, torch.Tensor]], attributes: Attributes, empty: Allocate = np.empty,
    ) -> None:  # fmt: skip
        """Add to the `numbers` and `rows` of each batch of a group what `__call__` would pick for
        it: in one call for all, over memory of the group. For errors see `__call__`; they come
        before their batch's turn, and what was added until then is right."""
        for nodes in self._nodes:
            ids = [_nodes_of(sample, nodes.type) for sample in samples]
            self._pick_together(nodes, ids, rows, attributes, empty)
        for edges in self._edges:
            name, positions = self._numbers_names[edges.type], list[Int32Array | Int64Array]()
            for sample in samples:
                if (found := _edges_of(sample, edges.type)) is not None:
                    positions.append(found)
            if len(positions) < len(samples):
                continue
            if name not in numbers[0]:
                whole = cast(Int32Array | Int64Array, np.concatenate(positions))
                number = self._numbered(whole, samples[0], edges.type, attributes, empty)
                for each, own in zip(numbers, divided(number, positions), strict=True):
                    each[name] = own
            ids = [each[name] for each in numbers]
            self._pick_together(edges, ids, rows, attributes, empty)

    def _pick_together(
        self, view: StoredNodes | StoredEdges, ids: Sequence[Int64Array],
        rows: Sequence[dict[str, torch.Tensor]], attributes: Attributes, empty: Allocate,
    ) -> None:  # fmt: skip
        fields = [field for field in self._fields[view.name_of("")] if field[1] not in rows[0]]
        number = np.concatenate(ids) if fields else _NONE
        for _, full, of_class in fields:
            picked = _pick(full, of_class, number, attributes, empty)
            for each, own in zip(rows, divided(picked, ids), strict=True):
                each[full] = own

    def numbered(self, sample: Sample | Subgraph, attributes: Attributes) -> Sample | Subgraph:
        """The same sample with the original numbers of its edges instead of their CSC positions;
        blocks to read them. For errors see `__call__`."""
        if isinstance(sample, Subgraph):
            edge = {type: self._edge_numbers(sample, type, attributes, np.empty)
                    for type in sample.edge}  # fmt: skip
            return replace(sample, edge=edge, numbered=True)
        number = self._edge_numbers(sample, None, attributes, np.empty)
        assert number is not None
        return replace(sample, edge=number, numbered=True)

    def __call__(
        self,
        seeds: Seeds,
        sample: Sample | Subgraph,
        numbers: Mapping[str, Int64Array],
        rows: Rows,
        attributes: Attributes,
        empty: Allocate = np.empty,
        device: Device | None = None,
        where: torch.device | None = None,
    ) -> Any:
        """Make the batch.

        Args:
            numbers: the result of `rows_of` for the sample; empty: edge numbers are looked up.
            rows: rows of the tables, [n, *row], on the device, and of attributes by full name that
                were picked before.
            attributes: reads all other attributes.
            empty: allocates the batch's other arrays.
            device: delivers the batch; None: the batch stays where it is.
            where: the device that the batch is moved to if `device` is None; None: it is not moved.

        Returns:
            A Data with x, edge_index (int64 [2, edges]), every other attribute of the store, n_id
            (int64 [nodes]), e_id (int64 [edges]), num_sampled_nodes, num_sampled_edges, input_id,
            batch_size, and the attributes that the kind of sampling adds; a HeteroData with all of
            them by type; or what the transform returns for either.

        Raises:
            ConfigError: the user's sampler names an edge that the graph does not have.
            StoreError, ReadError: the store is damaged or cannot be read.
        """
        batch = self._empty_batch()
        part = _parts(batch) if self._custom_cls is None else partial(_part, batch)
        for nodes in self._nodes:
            node = _nodes_of(sample, nodes.type)
            self._join(part(nodes.type), nodes, node, rows, attributes, empty)
            if not self._fields[nodes.name_of("")]:
                _part(batch, nodes.type).num_nodes = len(node)
        for edges in self._edges:
            storage = part(edges.type)
            self._put(storage, {"edge_index": _edge_index(sample, edges.type, empty)}, setattr)
            if _edges_of(sample, edges.type) is not None:
                number = numbers.get(self._numbers_names[edges.type])
                if number is None:
                    number = self._edge_numbers(sample, edges.type, attributes, empty)
                assert number is not None
                self._join(storage, edges, number, rows, attributes, empty)
        if isinstance(sample, Subgraph):
            describe(batch, seeds.type, seeds.of_edges, sample.output, part)
        else:
            values = {
                "num_sampled_nodes": list(sample.num_sampled_nodes),
                "num_sampled_edges": list(sample.num_sampled_edges),
                "input_id": torch.from_numpy(seeds.input_id),
                "batch_size": len(seeds.node),
            }
            self._put(part(None), values, setattr)
        return self._finished(batch, rows, device, where)

    def _put(
        self, storage: Any, values: dict[str, Any], put: Callable[[Any, str, Any], object]
    ) -> None:
        """Set attributes of a part of a batch; in the user's class, `put` sets each."""
        if self._custom_cls is None:
            storage.update(values)
            return
        for name, value in values.items():
            put(storage, name, value)

    def _empty_batch(self) -> Any:
        """A batch with the attributes that belong to the whole graph."""
        kind = HeteroData if self.store.is_hetero else Data
        if self._custom_cls is None and self.store.is_hetero:
            return _copied(self._blank)
        batch = kind() if self._custom_cls is None else self._custom_cls()
        if not isinstance(batch, kind):
            raise ConfigError(
                f"custom_cls= made a {type(batch).__name__}: give a class that is a {kind.__name__}"
            )
        self._set_here.describe(batch)
        return batch

    def _finished(
        self, batch: Any, rows: Rows, device: Device | None, where: torch.device | None
    ) -> Any:
        """Move the batch to its device, convert x to its dtype, apply the transform."""
        of_tables = [rows[table.name] for table in self.tables]
        if self._pin_memory and all(value.device.type == "cpu" for value in of_tables):
            batch = batch.pin_memory()
        if device is not None:
            return device.deliver(batch, of_tables, self._converted)
        return self._converted(batch if where is None else batch.to(where))

    def _converted(self, batch: Any) -> Any:
        if self._feature_dtype is not None:
            for storage in [batch] if isinstance(batch, Data) else batch.node_stores:
                self._convert(storage, self._feature_dtype)
        return batch if self._transform is None else self._transform(batch)

    def _join(
        self, storage: Any, view: StoredNodes | StoredEdges, number: Int64Array, rows: Rows,
        attributes: Attributes, empty: Allocate,
    ) -> None:  # fmt: skip
        """Add to a batch the attributes of its nodes or edges of a type; `number` holds node ids or
        original edge numbers, int64 [n]."""
        values = {}
        for name, full, of_class in self._fields[view.name_of("")]:
            given = rows.get(full)
            if given is None:
                given = _pick(full, of_class, number, attributes, empty)
            values[name] = given
        self._set_here.join(values, view, number)
        if view.id_name not in values and view.id_name not in storage:
            values[view.id_name] = torch.from_numpy(number)
        self._put(storage, values, setitem)

    def _edge_numbers(
        self, sample: Sample | Subgraph, type: EdgeKey, attributes: Attributes, empty: Allocate
    ) -> Int64Array | None:
        """The original numbers of a sample's edges of a type, int64 [edges]; None: the edges are
        not edges of the graph. For the errors see `__call__`."""
        edge = _edges_of(sample, type)
        return None if edge is None else self._numbered(edge, sample, type, attributes, empty)

    def _numbered(
        self, edge: Int32Array | Int64Array, sample: Sample | Subgraph, type: EdgeKey,
        attributes: Attributes, empty: Allocate,
    ) -> Int64Array:  # fmt: skip
        """The original numbers of `edge`, which are edges of samples as `sample` is."""
        edges = self._edges_of[type]
        drawn = isinstance(sample, Sample) or sample.ends is not None or not len(edge)
        if not drawn and not 0 <= int(edge.min()) <= int(edge.max()) < edges.num_edges:
            raise ConfigError(
                f"neighbor_sampler= or transform_sampler_output= named edge {edge.min()} or "
                f"{edge.max()}, and there are {edges.num_edges}: number them from 0"
            )
        if sample.numbered:
            return _wide(edge, empty)
        return _numbers(edge, edges, attributes, empty)

    def converted_bytes(self, table: FeatureTable) -> int:
        """Bytes of a table's row after its conversion for a batch; 0: it is not converted."""
        dtype, stored = self._feature_dtype, torch_dtype(table.file.dtype)
        if dtype is None or dtype == stored or table.attribute != NODE_FEATURES:
            return 0
        return dtype.itemsize * prod(table.file.row_shape)

    def _convert(self, storage: Any, dtype: torch.dtype) -> None:
        name = NODE_FEATURES
        if name not in storage or storage[name].dtype == dtype:
            return
        stored = storage[name]
        storage[name] = stored.to(dtype)
        scale = storage.get(f"{name}_scale")
        if scale is not None and not stored.is_floating_point():
            wide = [-1] + [1] * (stored.dim() - 1) if scale.dim() == 1 else scale.shape
            storage[name] *= scale.to(dtype).view(*wide)

    def from_map(
        self, seeds: Seeds, sample: Sample | Subgraph, where: torch.device | None = None
    ) -> Any:
        """Make one batch without a pipeline; its features are read through the memory map."""
        numbers = self.rows_of(sample, self.attributes)
        rows = {name: self.attributes.pick(name, ids) for name, ids in numbers.items()}
        return self(seeds, sample, numbers, rows, self.attributes, where=where)

    def close(self) -> None:
        """Drop memory maps and labels; the next batch reads them again."""
        self.attributes.close()
        for each in self._labels.values():
            each.close()


def _pick(
    full: str, of_class: labels.Labels | None, number: Int64Array, attributes: Attributes,
    empty: Allocate,
) -> torch.Tensor:  # fmt: skip
    """Rows of an attribute by its full name, from the labels in memory if they are there."""
    found = None if of_class is None else of_class.pick(number, empty)
    return attributes.pick(full, number, empty) if found is None else found


def _buffered_tables(store: Store, names: Container[str] | None) -> tuple[FeatureTable, ...]:
    tables = feature_tables(store)
    return tables if names is None else tuple(each for each in tables if each.name in names)


def _nodes_of(sample: Sample | Subgraph, type: NodeKey) -> Int64Array:
    return sample.node if isinstance(sample, Sample) else sample.node.get(type, _NONE)


def _check_range(ids: Int64Array, table: FeatureTable) -> None:
    """IndexError at the batch's turn: an admission would refuse its whole group."""
    if not 0 <= int(ids.min()) <= int(ids.max()) < table.rows:
        raise IndexError(f"a row id of {table.name!r} is out of range: check neighbor_sampler=")


def _edges_of(sample: Sample | Subgraph, type: EdgeKey) -> Int32Array | Int64Array | None:
    """A sample's edges of a type; None: they are not edges of the graph."""
    return sample.edge if isinstance(sample, Sample) else sample.edge.get(type, _NONE)


def _edge_index(sample: Sample | Subgraph, type: EdgeKey, empty: Allocate) -> torch.Tensor:
    """Both ends of a sample's edges of a type, int64 [2, edges]."""
    if isinstance(sample, Sample):
        return torch.from_numpy(edge_index(sample.row, sample.colptr, empty))
    if sample.ends is not None and type in sample.ends:
        return torch.from_numpy(sample.ends[type])
    row, col = sample.output.row, sample.output.col
    if type is not None:
        if type not in row:
            return torch.empty((2, 0), dtype=torch.int64)
        row, col = row[type], col[type]
    if row.device.type != "cpu" or len(row) != len(col):
        return torch.stack([row, col]).to(torch.int64)
    ends: Int64Array = empty((2, len(row)), np.int64)
    for each, out in zip((row, col), ends, strict=True):
        widen(as_int64(each), out)
    return torch.from_numpy(ends)


def _numbers(
    position: Int32Array | Int64Array, edges: StoredEdges, attributes: Attributes, empty: Allocate
) -> Int64Array:
    """The original numbers of the edges at these CSC positions, int64 [edges]. A negative number is
    refused too, because it would index from the end."""
    position, name = _wide(position, empty), edges.edge_id_name
    if name is None:
        return position
    stored, edge = attributes.pick(name, position, empty).numpy(), empty(len(position), np.int64)
    if not widen(stored, edge, 0, edges.num_edges - 1):
        raise StoreError(
            f"{edges.indices_path.parent}/edge_id.npy names an edge that does not exist: run "
            "`gnndrive verify` and import the store again"
        )
    return edge


def _wide(numbers: Int32Array | Int64Array, empty: Allocate) -> Int64Array:
    """`numbers` as int64; a copy is in memory from `empty`."""
    if numbers.dtype == np.int64:
        return cast(Int64Array, numbers)
    wide: Int64Array = empty(len(numbers), np.int64)
    widen(numbers, wide)
    return wide


# ---- what PyG's loaders add of a sampler's output: seeds, labels, times, counts


def _part(batch: Any, type: NodeKey | EdgeKey) -> Any:
    """What holds the attributes of a type of a batch, or of the whole batch."""
    return batch if type is None else batch[type]


def _parts(batch: Data | HeteroData) -> Callable[[Any], dict[str, Any]]:
    """Like `_part`, of a new batch of PyG's own class: the dicts of its storages. They have no
    setters for what a sample brings, and nothing is cached yet."""
    if isinstance(batch, Data):
        mapping: dict[str, Any] = batch.stores[0]._mapping
        return lambda type: mapping
    parts = {each._key: each._mapping for each in batch.node_stores + batch.edge_stores}
    return lambda type: parts[type] if type in parts else batch[type]._mapping


def _copied(blank: HeteroData) -> HeteroData:
    """What `copy.copy` returns, in a third of the time."""
    batch = HeteroData()
    state, parent = batch.__dict__, ref(batch)
    state["_global_store"] = _copied_storage(blank.__dict__["_global_store"], parent)
    for name in ("_node_store_dict", "_edge_store_dict"):
        for type, storage in blank.__dict__[name].items():
            state[name][type] = _copied_storage(storage, parent)
    return batch


def _copied_storage(storage: Any, parent: ref[HeteroData]) -> Any:
    copied: Any = object.__new__(storage.__class__)
    copied.__dict__.update(storage.__dict__, _parent=parent, _mapping=dict(storage._mapping))
    return copied


def describe(
    batch: Any, type: NodeKey | EdgeKey, of_edges: bool, output: Any,
    part: Callable[[Any], Any] | None = None,
) -> None:  # fmt: skip
    """Add to a batch what PyG's loaders add of the output of a sampler whose seeds are nodes or
    edges of a type; `part`: see `_part`, None: that."""
    part = part or partial(_part, batch)
    of_graph = {
        "batch": output.batch,
        "num_sampled_nodes": output.num_sampled_nodes,
        "num_sampled_edges": output.num_sampled_edges,
    }
    if isinstance(output, SamplerOutput):
        if output.orig_row is not None and output.orig_col is not None:
            batch._orig_edge_index = torch.stack([output.orig_row, output.orig_col])
        values = _of_seeds(of_edges, output.metadata)
        if "src_index" in values:
            values |= _NO_PAIRS
        _set_or_delete(part(None), of_graph | values)
        return
    for name, by_type in of_graph.items():
        for each, value in (by_type or {}).items():
            _set_or_delete(part(each), {name: value})
    if output.orig_row is not None and output.orig_col is not None:
        for each, row in output.orig_row.items():
            batch[each]._orig_edge_index = torch.stack([row, output.orig_col[each]])
    values = _of_seeds(of_edges, output.metadata)
    if "src_index" not in values:
        _set_or_delete(part(type), values)
        return
    assert isinstance(type, tuple)
    source, _, target = type
    batch[type].input_id = values["input_id"]
    _set_or_delete(part(source), {name: values[name] for name in ("src_index", "seed_time")})
    of_target = ("dst_pos_index", "dst_neg_index", "seed_time")
    _set_or_delete(part(target), {name: values[name] for name in of_target})
    _set_or_delete(part(type), _NO_PAIRS)


def _of_seeds(of_edges: bool, metadata: Any) -> dict[str, Any]:
    """The attributes of a batch's seeds, from the metadata of a sampler's output."""
    values = {"input_id": metadata[0]}
    if not of_edges:
        return values | {"seed_time": metadata[1], "batch_size": len(metadata[0])}
    names = _BINARY if len(metadata) == len(_BINARY) + 1 else _TRIPLET
    return values | dict(zip(names, metadata[1:], strict=True))


def _set_or_delete(storage: Data | Any, values: dict[str, Any]) -> None:
    """Set attributes; for None, delete the store's attribute of that name, because its meaning is
    another one."""
    for name, value in values.items():
        if value is not None:
            storage[name] = value
        elif name in storage:
            del storage[name]


class _SetHere:
    """What a program had set on a store when this object was made, and the store's values of the
    whole graph, as PyG delivers what is set on its data: an attribute with one row for each node or
    edge is indexed by the batch's, in memory; any other is in each batch as it is."""

    def __init__(self, store: Store) -> None:
        views = (*store.all_nodes(), *store.all_edges())
        self._rows = {each.name_of(""): each.attached(each.group) for each in views}
        self._whole: dict[Any, dict[str, Any]] = {None: store.unsliced()}
        if store.is_hetero:
            self._whole |= {each.type: each.unsliced() for each in views}

    def describe(self, batch: Any) -> None:
        """Add to a batch the attributes that have no rows of nodes or edges."""
        for type, values in self._whole.items():
            storage = batch if type is None else batch[type]
            for name, value in values.items():
                setattr(storage, name, value)

    def join(
        self, values: dict[str, Any], view: StoredNodes | StoredEdges, number: Int64Array
    ) -> None:
        """Add the rows of a batch's nodes or edges of a type; see `Collate._join`."""
        for name, (value, dim) in self._rows[view.name_of("")].items():
            at = torch.from_numpy(number).to(value.device)
            values[name] = select(value, dim, at)
