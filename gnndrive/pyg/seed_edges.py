"""`SeedEdges`: leaves seed edges out of the sample around them.

In link prediction, a seed edge that is sampled too tells the model the answer. With
`LinkNeighborLoader(…, exclude_seed_edges=…)` it, all edges parallel to it and, if asked, those of
the other direction are dropped from the messages of their batch; nodes stay. As GraphBolt's
`exclude_seed_edges`, by pairs of nodes, after sampling.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import get_edge_label_index
from torch_geometric.transforms import Compose

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, ends_of


@dataclass(frozen=True, slots=True)
class SeedEdges:
    """Drops the edges that join the ends of a seed edge; called with a sample of PyG's.

    Attributes:
        type: of the seed edges; None in a homogeneous graph.
        reverse: of their reverse edges, which are dropped too; "": they are not.
    """

    type: EdgeKey
    reverse: EdgeKey | str = ""

    def __call__(self, out: Any) -> Any:
        """A copy of the sample, a SamplerOutput or HeteroSamplerOutput, without these edges."""
        out = copy.copy(out)
        ends = self._seed_ends(out)
        _drop(out, self.type, ends)
        if self.reverse != "":
            _drop(out, self.reverse, ends.flip(0))  # type: ignore[arg-type]
        return out

    def _seed_ends(self, out: Any) -> torch.Tensor:
        """The nodes of the seed edges without negative ones, int64 [2, edges]."""
        input_id, first, second, *rest = out.metadata
        if input_id is None:
            raise ConfigError(
                "exclude_seed_edges= needs a neighbor_sampler= that keeps input_id in its output's "
                "metadata, because it tells which edges are negative: keep it, or leave one out"
            )
        source, target = (first, second) if len(rest) == 2 else first  # triplets have 5 fields
        count = len(source) if len(rest) == 2 else len(input_id)
        places = (torch.as_tensor(each)[:count] for each in (source, target))
        return torch.stack(
            [_nodes(out, name)[each] for name, each in zip(ends_of(self.type), places, strict=True)]
        )


def excluded_edges(given: Any, type: EdgeKey, edge_types: Collection[EdgeKey]) -> SeedEdges | None:
    """Check `exclude_seed_edges=`: which edges it drops around seeds of a type; None: none.

    Raises:
        ConfigError: it is no such value, or the graph has no such reverse type.
    """
    if given is None or isinstance(given, bool):
        return SeedEdges(type) if given else None
    if isinstance(given, Mapping):
        pairs = {**{reverse: each for each, reverse in given.items()}, **given}
        there = [each for each in edge_types if ends_of(each) == ends_of(type)[::-1]]
        if pairs.get(type) not in there or type is None:
            raise ConfigError(
                f"exclude_seed_edges={given!r} does not pair the seeds' type {type} with a type of "
                f"the other direction ({', '.join(map(str, there)) or 'none'}): give such a pair"
            )
        return SeedEdges(type, pairs[type])
    if given != "reverse":
        raise ConfigError(
            f'exclude_seed_edges={given!r}: give False, True, "reverse" (edges of the other '
            "direction too), or a dict {type: reverse type}"
        )
    if type is None:
        return SeedEdges(None, None)
    source, name, target = type
    back = name.removeprefix("rev_") if name.startswith("rev_") else f"rev_{name}"
    found = [each for each in ((target, back, source), type) if each in edge_types]
    if found[0] == type and source != target:
        raise ConfigError(
            f'exclude_seed_edges="reverse": there is no edge type {(target, back, source)}: give '
            f"{{{type}: reverse type}}; there are {', '.join(map(str, edge_types))}"
        )
    return SeedEdges(type, found[0])


def excluded_in_memory(given: Any, data: Any, edge_label_index: Any, transform: Any) -> Any:
    """The `transform_sampler_output=` of a loader over data in memory: `transform`, or None, behind
    what drops seed edges; for `given` and the errors see `excluded_edges`."""
    if given is None or given is False:
        return transform
    if isinstance(data, Data):
        types: list[EdgeKey] = [None]
    elif isinstance(data, HeteroData):
        types = data.edge_types
    else:
        types = [each.edge_type for each in data[1].get_all_edge_attrs()]
    excluded = excluded_edges(given, get_edge_label_index(data, edge_label_index)[0], types)
    return Compose([excluded, *([] if transform is None else [transform])])


def _drop(out: Any, type: EdgeKey, ends: torch.Tensor) -> None:
    """Drop from `out` the edges of a type that join such ends, node ids [2, pairs]."""
    row, col = _part(out.row, type), _part(out.col, type)
    if row is None or not len(row) or not ends.size(1):
        return
    source, target = (_nodes(out, name) for name in ends_of(type))
    # Few edges begin at a seed's source and end at a seed's target: only they are looked up.
    near = torch.isin(source, ends[0])[row] & torch.isin(target, ends[1])[col]
    places = near.nonzero().view(-1)
    bound = int(ends[1].max()) + 1
    pairs = source[row[places]] * bound + target[col[places]]
    near[places] = torch.isin(pairs, ends[0] * bound + ends[1])
    keep = ~near
    hops = _part(out.num_sampled_edges, type)
    if hops is not None and sum(hops) == len(keep):
        kept = [int(each.sum()) for each in torch.split(keep, list(hops))]
        _set(out, "num_sampled_edges", type, kept)
    for name in ("row", "col", "edge"):
        value = _part(getattr(out, name), type)
        if value is not None:
            _set(out, name, type, value[keep])


def _nodes(out: Any, type: str | None) -> torch.Tensor:
    return torch.as_tensor(out.node if type is None else out.node[type])


def _part(of_types: Any, type: EdgeKey) -> Any:
    """The part of an edge type; None: there is none."""
    return of_types if type is None or of_types is None else of_types.get(type)


def _set(out: Any, name: str, type: EdgeKey, value: Any) -> None:
    """Set the part of an edge type without changing the dict that `out` shares with its origin."""
    setattr(out, name, value if type is None else {**getattr(out, name), type: value})
