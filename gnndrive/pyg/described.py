"""Add to a batch what PyG's loaders add of a sampler's output: seeds, labels, times, counts."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnndrive.common.records import Seeds

BINARY = ("edge_label_index", "edge_label", "edge_label_time")
TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")
"""Names of the metadata of PyG's edge samplers after the input_id: binary, and for triplets."""


def describe(batch: Any, seeds: Seeds, output: Any) -> None:
    """Add to a batch the attributes of a sampler's output.

    Args:
        batch: a Data or HeteroData; it is changed.
        seeds: the batch's seeds.
        output: PyG's SamplerOutput or HeteroSamplerOutput.
    """
    of_graph = {
        "batch": output.batch,
        "num_sampled_nodes": output.num_sampled_nodes,
        "num_sampled_edges": output.num_sampled_edges,
    }
    if isinstance(output, SamplerOutput):
        if output.orig_row is not None and output.orig_col is not None:
            batch._orig_edge_index = torch.stack([output.orig_row, output.orig_col])
        _set_or_delete(batch, of_graph | _of_seeds(seeds, output.metadata))
        return
    for name, by_type in of_graph.items():
        batch.set_value_dict(name, by_type or {})
    if output.orig_row is not None and output.orig_col is not None:
        for type, row in output.orig_row.items():
            batch[type]._orig_edge_index = torch.stack([row, output.orig_col[type]])
    values = _of_seeds(seeds, output.metadata)
    if "src_index" not in values:
        _set_or_delete(batch[seeds.type], values)
        return
    assert isinstance(seeds.type, tuple)
    source, _, target = seeds.type
    batch[seeds.type].input_id = values["input_id"]
    _set_or_delete(batch[source], {name: values[name] for name in ("src_index", "seed_time")})
    of_target = ("dst_pos_index", "dst_neg_index", "seed_time")
    _set_or_delete(batch[target], {name: values[name] for name in of_target})


def _of_seeds(seeds: Seeds, metadata: Any) -> dict[str, Any]:
    """The attributes of a batch's seeds, from the metadata of a sampler's output."""
    values = {"input_id": metadata[0]}
    if not seeds.of_edges:
        return values | {"seed_time": metadata[1], "batch_size": len(metadata[0])}
    names = BINARY if len(metadata) == len(BINARY) + 1 else TRIPLET
    return values | dict(zip(names, metadata[1:], strict=True))


def _set_or_delete(storage: Data | Any, values: dict[str, Any]) -> None:
    """Set attributes; if a value is None, delete the store's attribute of that name, because its
    meaning is another one."""
    for name, value in values.items():
        if value is not None:
            storage[name] = value
        elif name in storage:
            del storage[name]
