"""Turn a batch's seeds and sample into sections of numbers, and back.

`schema_of` says which sections the batches of a recording have, `sections_of` makes them, and
`batch_of` makes the batch again: a `Sample`, or a `Subgraph` with PyG's SamplerOutput or
HeteroSamplerOutput. Packs have them, with the original numbers of edges, so that replaying reads no
graph, and traces of superbatches (`sampling/trace.py`). Ids are int32 where the store has fewer
than 2^31 nodes or edges of the type, and places within a sample are always int32.

When not to use it: for what a user's sampler or transform returns, which may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample, Seeds, Subgraph, ends_of
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.format import dtype_name, index_dtype
from gnndrive.store.packed.format import MEND
from gnndrive.store.packed.sections import (
    ABSENT,
    PLACING,
    Schema,
    Section,
    Type,
    placing_sections,
)
from gnndrive.store.types import Types, folder

Sections = Mapping[str, "npt.NDArray[Any] | None"]
OF_NODES, OF_EDGES = ("node", "batch"), ("row", "col", "edge", "orig_row", "orig_col")
_IDS, _BINARY, _TRIPLET = ("node", "edge"), 4, 5  # lengths of edge samplers' metadata


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """One batch of an epoch; its sample has `numbered` edges. A batch that was read has no
    `seeds.given`."""

    seeds: Seeds
    sample: Sample | Subgraph


def section_name(field: str, type: Type) -> str:
    """The name of a section: "row", "row/author__writes__paper"."""
    return f"{field}/{folder(type)}" if type is not None else field


def rows_of(sample: Sample | Subgraph, table: FeatureTable) -> npt.NDArray[Any]:
    """The rows of a table that a sample with `numbered` edges needs, integers [n]."""
    if isinstance(sample, Sample):
        return sample.edge if table.of_edges else sample.node
    of_type: Any = sample.edge if table.of_edges else sample.node
    found = of_type.get(table.type)
    return np.empty(0, np.int64) if found is None else found


def schema_of(
    batch: RecordedBatch, types: Types, tables: Sequence[FeatureTable], hops: int
) -> Schema:
    """The schema of a recording of the packed `tables`, from its first batch; ConfigError: its
    sample holds something that cannot be recorded."""
    seeds, sample = batch.seeds, batch.sample
    if isinstance(sample, Subgraph):
        hetero = isinstance(sample.output, HeteroSamplerOutput)
        form = "heterogeneous" if hetero else "homogeneous"
        metadata = _metadata_sections(sample.output.metadata, seeds.of_edges)
        found = [*fixed_sections(form, types), *metadata]
    else:
        form = "sample"
        found = fixed_sections(form, types)
    found += placing_sections(form, tables)
    node_types, edge_types = tuple(types.nodes), tuple(types.edges)
    return Schema(form, seeds.of_edges, seeds.type, hops, node_types, edge_types, tuple(found))


def check_schema(schema: Schema, types: Types, tables: Sequence[FeatureTable], where: str) -> None:
    """Check that a schema, perhaps a stranger's, is one of a recording of these tables."""
    more = ("metadata/", *PLACING)
    fixed = [each for each in schema.sections if not each.name.startswith(more)]
    metadata = [each.name for each in schema.sections if each.name.startswith("metadata/")]
    placing = [each for each in schema.sections if each.name.startswith(PLACING)]
    fits = fixed == fixed_sections(schema.form, types)
    fits = fits and metadata == [f"metadata/{place}" for place in range(len(metadata))]
    fits = fits and placing == list(placing_sections(schema.form, tables))
    of_types = tuple(types.nodes), tuple(types.edges)
    if not fits or (schema.node_types, schema.edge_types) != of_types:
        raise StoreError(f"{where} has samples of another form than this store's: {MEND}")


def fixed_sections(form: str, types: Types) -> list[Section]:
    """The sections that every recording of this form (`sections.FORMS`) and store has."""
    if form != "sample":
        seeds = [Section(name, "int64", "int64") for name in ("input_id", "seed")]
        return [*_graph_sections(types), *seeds]
    nodes, edges = (index_dtype(count) for count in (types.num_nodes, types.num_edges))
    return [
        Section("node", nodes, "int64"), Section("row", "int32", "int32"),
        Section("colptr", "int32", "int32"), Section("edge", edges, edges),
        Section("input_id", "int64", "int64"),
    ]  # fmt: skip


def _graph_sections(types: Types) -> Iterator[Section]:
    """The sections of a subgraph's nodes and edges. PyG has all their numbers as int64."""
    for fields, counts in (
        (OF_NODES, {type: each.num_nodes for type, each in types.nodes.items()}),
        (OF_EDGES, dict(types.edges)),
    ):
        of_type: dict[Any, int] = counts
        for type, count in of_type.items():
            for field in fields:
                dtype = index_dtype(count) if field in _IDS else "int32"
                yield Section(section_name(field, type), dtype, "int64")


def _metadata_sections(metadata: Any, of_edges: bool) -> Iterator[Section]:
    """The sections of what PyG's samplers say of the seeds."""
    lengths = (_BINARY, _TRIPLET) if of_edges else (2,)
    if not isinstance(metadata, tuple) or len(metadata) not in lengths:
        raise _refused("its metadata are not those of PyG's samplers")
    for place, value in enumerate(metadata):
        is_index = of_edges and place in ((1,) if len(metadata) == _BINARY else (1, 2, 3))
        if value is None:
            yield Section(f"metadata/{place}", "int64", "int64")
            continue
        if not isinstance(value, torch.Tensor) or not value.dim():
            raise _refused(f"its metadata have a {type(value).__name__} of another form")
        delivered = dtype_name(value.dtype)
        if delivered == "bfloat16" or value.dim() > 2:
            raise ConfigError(
                f"a sample cannot be recorded: edge_label= is {list(value.shape)} of {delivered}: "
                "give one or two dimensions, and float32 in place of bfloat16"
            )
        shape = (-1,) if value.dim() == 1 else (-1, value.size(1))
        if is_index and len(metadata) == _BINARY:
            shape = (2, -1)
        yield Section(f"metadata/{place}", "int32" if is_index else delivered, delivered, shape)


def _refused(why: str) -> ConfigError:
    return ConfigError(
        f"a sample cannot be recorded: {why}; leave out neighbor_sampler= and "
        "transform_sampler_output="
    )


# ---- writing


def sections_of(batch: RecordedBatch, schema: Schema) -> Sections:
    """A batch's sections by name, in any dtype; None: the batch has none of that name."""
    seeds, sample = batch.seeds, batch.sample
    found: dict[str, Any] = {"input_id": seeds.input_id}
    if isinstance(sample, Sample):
        found |= {"node": sample.node, "row": sample.row, "colptr": sample.colptr}
        found["edge"] = sample.edge
    else:
        found["seed"] = seeds.node
        found |= {section_name("node", type): each for type, each in sample.node.items()}
        found |= {section_name("edge", type): each for type, each in sample.edge.items()}
        for field in (*OF_NODES, *OF_EDGES):
            if field not in _IDS:
                given = getattr(sample.output, field)
                by_type = given if isinstance(given, Mapping) else {None: given}
                found |= {section_name(field, type): each for type, each in by_type.items()}
        metadata = sample.output.metadata
        found |= {f"metadata/{place}": each for place, each in enumerate(metadata)}
    for section in schema.sections:
        if section.name.startswith(PLACING):
            found[section.name] = np.empty(0, np.int32)
    return {each.name: _flat(found.get(each.name)) for each in schema.sections}


def _flat(given: Any) -> npt.NDArray[Any] | None:
    if isinstance(given, torch.Tensor):
        given = given.contiguous().numpy()
    return None if given is None else given.reshape(-1)


def hop_counts_of(sample: Sample | Subgraph, schema: Schema) -> list[int]:
    """A sample's counts by hop, in the order of the index's columns."""
    source = sample if isinstance(sample, Sample) else sample.output
    found: list[int] = []
    for types, given, hops in (
        (schema.node_types, source.num_sampled_nodes, schema.hops + 1),
        (schema.edge_types, source.num_sampled_edges, schema.hops),
    ):
        by_type = given if isinstance(given, Mapping) else {None: given}
        for type in types:
            counts = by_type.get(type)
            found += [ABSENT] * hops if counts is None else [int(count) for count in counts]
    return found


# ---- reading


def batch_of(
    index: int, row: Int64Array, sections: Sections, schema: Schema, types: Types, where: str,
    empty: Allocate = np.empty, trusted: bool = False,
) -> RecordedBatch:  # fmt: skip
    """The batch that was recorded, number `index` of its epoch, from its row of the index and its
    sections, which may come from a stranger unless they are `trusted`; `empty` allocates the ids of
    a plain sample's nodes if the sections have them in another dtype.
    """
    try:
        if schema.form == "sample":
            batch = _plain(index, row, sections, schema, empty)
            if not trusted:
                _check_plain(batch.sample, types)
            return batch
        return _subgraph(index, row, sections, schema, types, trusted)
    except (_OutOfRange, KeyError, ValueError, OverflowError) as error:
        raise StoreError(f"{where}: batch {index} is damaged ({error}): {MEND}") from None


class _OutOfRange(Exception):
    """A section is missing, too short, or has a number out of range."""


def _within(name: str, values: Any, limit: int, low: int = 0) -> None:
    """Check that all values are in [low, limit)."""
    if len(values) and not (int(values.min()) >= low and int(values.max()) < limit):
        raise _OutOfRange(f"{name} has a number outside {low} … {limit - 1}")


def _needed(sections: Sections, name: str) -> npt.NDArray[Any]:
    found = sections.get(name)
    if found is None:
        raise _OutOfRange(f"it has no {name}")
    return found


def _plain(
    index: int, row: Int64Array, sections: Sections, schema: Schema, empty: Allocate
) -> RecordedBatch:
    node, source = _needed(sections, "node"), _needed(sections, "row")
    colptr, edge = _needed(sections, "colptr"), _needed(sections, "edge")
    input_id = _needed(sections, "input_id")
    per_hop = [schema.hop_counts(row, what, None) for what in ("nodes", "edges")]
    if per_hop[0] is None or per_hop[1] is None or min(*per_hop[0], *per_hop[1], 0) < 0:
        raise _OutOfRange("it has no counts by hop")
    seeds = per_hop[0][0]
    sums = (sum(per_hop[0]), sum(per_hop[1]), seeds, len(edge))
    if sums != (len(node), len(source), len(input_id), len(source)):
        raise _OutOfRange("its counts do not fit together")
    if node.dtype != np.int64:
        wide: Int64Array = empty(len(node), np.int64)
        wide[:] = node
        node = wide
    sample = Sample(node, source, colptr, edge, tuple(per_hop[0]), tuple(per_hop[1]), True)
    return RecordedBatch(Seeds(index, node[:seeds], input_id), sample)


def _check_plain(sample: Sample | Subgraph, types: Types) -> None:
    assert isinstance(sample, Sample)
    colptr, edges = sample.colptr, len(sample.row)
    _within("node", sample.node, types.num_nodes)
    _within("row", sample.row, len(sample.node))
    _within("edge", sample.edge, types.num_edges)
    fits = 1 <= len(colptr) <= len(sample.node) + 1 and (colptr[0], colptr[-1]) == (0, edges)
    if not fits or bool((colptr[1:] < colptr[:-1]).any()):
        raise _OutOfRange("colptr does not run from 0 to the number of edges")


def _subgraph(
    index: int, row: Int64Array, sections: Sections, schema: Schema, types: Types, trusted: bool
) -> RecordedBatch:
    hetero = schema.form == "heterogeneous"
    fields: dict[str, dict[Any, torch.Tensor]] = {field: {} for field in (*OF_NODES, *OF_EDGES)}
    stored = {each.name: each for each in schema.sections}
    for field, of_type in fields.items():
        kind: Mapping[Any, Any] = types.nodes if field in OF_NODES else types.edges
        for type in kind:
            name = section_name(field, type)
            if (values := sections.get(name)) is not None:
                of_type[type] = _delivered(values, stored[name])
    if not trusted:
        _check_subgraph(fields, types)
    metadata = tuple(
        None if sections[name] is None else _delivered(_needed(sections, name), section)
        for name, section in stored.items()
        if name.startswith("metadata/")
    )
    node = {type: each.numpy() for type, each in fields["node"].items()}
    edges: dict[EdgeKey, Int64Array | None] = dict.fromkeys(fields["row"])
    edges |= {type: each.numpy() for type, each in fields["edge"].items()}
    if not trusted:
        _check_metadata(metadata, schema, node)
    given: dict[str, Any] = {
        name: of_type if hetero else of_type.get(None) for name, of_type in fields.items()
    }
    for name in ("batch", "orig_row", "orig_col", "edge"):
        given[name] = given[name] if fields[name] else None
    counts: dict[str, Any] = {}
    listed: dict[str, Sequence[Type]] = {"nodes": schema.node_types, "edges": schema.edge_types}
    for what, of_kind in listed.items():
        per_hop: dict[Any, Any] = {key: schema.hop_counts(row, what, key) for key in of_kind}
        if None in per_hop.values() or (what == "edges" and counts["num_sampled_nodes"] is None):
            per_hop = {}  # a sample without hops has no column that says so for its edges
        counts[f"num_sampled_{what}"] = (per_hop or None) if hetero else per_hop.get(None)
    if hetero and edges and given["edge"] is not None:
        given["edge"] = {key: fields["edge"].get(key) for key in edges}
    output = HeteroSamplerOutput if hetero else SamplerOutput
    made = output(metadata=metadata, **given, **counts)
    count = sum(map(len, fields["row"].values()))
    seeds = Seeds(
        index, _needed(sections, "seed"), _needed(sections, "input_id"), None, schema.of_edges,
        schema.seed_type,
    )  # fmt: skip
    return RecordedBatch(seeds, Subgraph(node, edges, count, made, numbered=True))


def _delivered(values: npt.NDArray[Any], section: Section) -> torch.Tensor:
    shaped = values.reshape(section.shape)
    return torch.from_numpy(shaped.astype(section.delivered))


def _check_subgraph(fields: Mapping[str, Mapping[Any, torch.Tensor]], types: Types) -> None:
    counts: dict[NodeKey, int] = {}
    for type, each in types.nodes.items():
        node = fields["node"].get(type, torch.empty(0))
        counts[type] = len(node)
        _within("node", node, each.num_nodes)
        trees = fields["batch"].get(type)
        if trees is not None and len(trees) != len(node):
            raise _OutOfRange("a node has no tree")
        _within("batch", [] if trees is None else trees, 1 << 31)
    for key, edges in types.edges.items():
        source, target = (counts[end] for end in ends_of(key))
        for names in (("row", "col"), ("orig_row", "orig_col")):
            row, col = (fields[name].get(key) for name in names)
            if row is None and col is None:
                continue
            if row is None or col is None or len(row) != len(col):
                raise _OutOfRange("the ends of its edges do not fit together")
            _within(names[0], row, source)
            _within(names[1], col, target)
        number = fields["edge"].get(key)
        if number is not None:
            _within("edge", number, edges)
            if len(number) != len(fields["row"].get(key, ())):
                raise _OutOfRange("an edge has no number")


def _check_metadata(metadata: Any, schema: Schema, node: Mapping[NodeKey, Int64Array]) -> None:
    """Check the places of the seed edges' ends among the sampled nodes."""
    if len(metadata) not in ((_BINARY, _TRIPLET) if schema.of_edges else (2,)):
        raise _OutOfRange("its metadata are of another form")
    if not schema.of_edges:
        return
    seed_type = schema.seed_type
    if isinstance(seed_type, str):
        raise _OutOfRange("its seeds are edges, and have a type of nodes")
    source, target = (len(node.get(end, ())) for end in ends_of(seed_type))
    pairs = [(metadata[1], source), (metadata[2], target), (metadata[3], target)]
    if len(metadata) == _BINARY:
        both = metadata[1]
        pairs = [] if both is None else [(both[0], source), (both[1], target)]
    for values, limit in pairs:
        if values is not None:
            _within("an end of a seed edge", values.reshape(-1), limit)
