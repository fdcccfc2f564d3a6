"""What PyG's NodeLoader and LinkLoader say of a batch beside its attributes: how it was sampled,
and around what.
"""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnndrive.records import Seeds

BINARY = ("edge_label_index", "edge_label", "edge_label_time")
TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")
"""What PyG's samplers of edges say of a batch behind its input_id, without and with triplets."""


def describe(batch: Any, seeds: Seeds, output: Any) -> None:
    """Put into a batch what a sampler said of it.

    Args:
        batch: a Data or HeteroData.
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
        _say(batch, of_graph | _of_seeds(seeds, output.metadata))
        return
    for name, by_type in of_graph.items():
        batch.set_value_dict(name, by_type or {})
    if output.orig_row is not None and output.orig_col is not None:
        for type, row in output.orig_row.items():
            batch[type]._orig_edge_index = torch.stack([row, output.orig_col[type]])
    said = _of_seeds(seeds, output.metadata)
    if "src_index" not in said:
        _say(batch[seeds.type], said)
        return
    assert isinstance(seeds.type, tuple)
    source, _, target = seeds.type
    batch[seeds.type].input_id = said["input_id"]
    _say(batch[source], {name: said[name] for name in ("src_index", "seed_time")})
    of_target = ("dst_pos_index", "dst_neg_index", "seed_time")
    _say(batch[target], {name: said[name] for name in of_target})


def _of_seeds(seeds: Seeds, metadata: Any) -> dict[str, Any]:
    said = {"input_id": metadata[0]}
    if not seeds.of_edges:
        return said | {"seed_time": metadata[1], "batch_size": len(metadata[0])}
    names = BINARY if len(metadata) == len(BINARY) + 1 else TRIPLET
    return said | dict(zip(names, metadata[1:], strict=True))


def _say(storage: Data | Any, said: dict[str, Any]) -> None:
    for name, value in said.items():
        if value is not None:
            storage[name] = value
        elif name in storage:  # the store's attribute of that name is another thing
            del storage[name]
