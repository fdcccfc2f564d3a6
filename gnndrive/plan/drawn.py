"""`DrawnBatches`: the sizes of a few batches that were drawn to plan a loader's memory.

The most that a fanout allows is a poor measure of a batch: neighbourhoods overlap, most nodes have
fewer neighbours than the fanout, and with a fanout of -1 the bound is the whole graph. So a loader
with a budget samples a few batches when its plan is made, on the memory-mapped adjacency, and the
plan counts the largest of them and a margin. What was drawn is kept in batches.json in the store's
folder. A later batch that is larger than planned is no error: the loader plans again with its size
(`loader/iterator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, stdev
from time import thread_time
from typing import Any

import numpy as np
import torch

from gnndrive.common.distinct import distinct
from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.progress import report
from gnndrive.common.records import Int64Array, NodeKey, Sample, Seeds, Subgraph
from gnndrive.sampling.samplers.base import Bounds, Sampler, batch_key
from gnndrive.sampling.topologies.base import Topology

DRAWN_BATCHES = 8  # as many as the look-ahead window has, so that its rows can be counted
DRAWN_EDGES_MAX = 1 << 26  # no further batch is drawn after so many edges
# A planned batch has the size of the largest one drawn, and a hundredth and four standard
# deviations more. Of batches whose sizes are distributed normally, one in tens of thousands is
# larger; it costs the loader a new feature buffer.
MARGIN = 0.01
DEVIATIONS = 4
MARGIN_OF_FEW = 0.25  # the margin if fewer than `FEW` batches were drawn
FEW = 4
SMALL_SHARE = 200  # a type's planned size is at least this part of all types' together
GROWTH = 0.1  # a batch larger than planned raises the planned size by at least this much more
_KEY = 0x6D656D6F7279  # with which batches are drawn; no epoch's
_VERSION = 4

Counts = Mapping[Any, int]  # by type of node or edge


@dataclass(frozen=True, slots=True)
class DrawnBatches:
    """What is known of a loader's batches.

    Attributes:
        together: table name → the numbers of distinct rows that the first batch, the first two, …
            need together.
        expanded: the mean number of nodes whose neighbours were sampled.
        sample_s: seconds of one core that sampling a batch takes, with the adjacency in memory.
        larger: the size of the largest later batch that was larger than planned; None: no batch.
    """

    sizes: tuple[Bounds, ...]
    together: Mapping[str, tuple[int, ...]]
    expanded: float
    sample_s: float
    larger: Bounds | None = None

    def planned(self, bounds: Bounds) -> Bounds:
        """The size that a plan counts for the largest batch: at most `bounds`."""
        larger = (None,) * 3 if self.larger is None else _parts(self.larger)
        drawn = zip(*map(_parts, self.sizes), strict=True)
        nodes, edges, entries = map(_planned, drawn, _parts(bounds), larger)
        expanded = None
        if all(each.expanded is not None for each in self.sizes):
            counts = [{None: each.expanded or 0} for each in self.sizes]
            most = {None: sum(bounds.entries.values())}
            more = None if self.larger is None else {None: self.larger.expanded or 0}
            expanded = _planned(counts, most, more)[None]
        return Bounds(nodes, edges, entries, expanded)

    def mean_nodes(self) -> float:
        """The mean number of nodes of a batch; a node counts once in each disjoint tree."""
        return fmean(sum(each.entries.values()) for each in self.sizes)

    def said(self) -> str:
        """What `plan()` prints of them."""
        edges = fmean(sum(each.edges.values()) for each in self.sizes)
        drawn = f"{len(self.sizes)} drawn"
        if self.larger is not None:
            drawn += f", and one of {sum(self.larger.entries.values()):,} nodes later"
        return f"a batch has about {self.mean_nodes():,.0f} nodes and {edges:,.0f} edges ({drawn})"

    def with_larger(self, size: Bounds) -> DrawnBatches:
        """The same with the size of a batch that was larger than planned."""
        return replace(self, larger=size if self.larger is None else largest(self.larger, size))

    # ---- kept in batches.json ----

    def to_json(self, settings: str) -> dict[str, Any]:
        """A form that JSON can hold; `settings` is kept for people who read it."""
        return {
            "version": _VERSION, "settings": settings,
            "sizes": [_size_to_json(each) for each in self.sizes],
            "together": {name: list(counts) for name, counts in self.together.items()},
            "expanded": self.expanded, "sample_s": self.sample_s,
            "larger": None if self.larger is None else _size_to_json(self.larger),
        }  # fmt: skip

    @classmethod
    def from_json(
        cls, entry: Any, bounds: Bounds, tables: Mapping[str, int]
    ) -> DrawnBatches | None:
        """What `to_json` made of a loader's batches; None: it is damaged. `bounds` has the store's
        types, `tables` the loader's tables by name, each with its number of rows."""
        try:
            if entry["version"] != _VERSION or not entry["sizes"]:
                return None
            sizes = tuple(_size_from_json(each, bounds) for each in entry["sizes"])
            return cls(
                sizes,
                {
                    name: _together(entry["together"][name], len(sizes), rows)
                    for name, rows in tables.items()
                },
                _number(entry["expanded"]),
                _number(entry["sample_s"]),
                None if entry["larger"] is None else _size_from_json(entry["larger"], bounds),
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            return None


def _parts(size: Bounds) -> tuple[Counts, Counts, Counts]:
    return size.nodes, size.edges, size.entries


def _planned(drawn: Sequence[Counts], most: Counts, larger: Counts | None) -> dict[Any, int]:
    """See `DrawnBatches.planned`, for one part of the sizes."""
    found: dict[Any, int] = {}
    for type in most:
        counts = [each[type] for each in drawn]
        margin = MARGIN_OF_FEW * max(counts)
        if len(counts) >= FEW:
            margin = MARGIN * max(counts) + DEVIATIONS * stdev(counts)
        found[type] = ceil(max(counts) + margin)
        if larger is not None:
            found[type] = max(found[type], ceil((1 + GROWTH) * larger[type]))
    least = ceil(sum(found.values()) / SMALL_SHARE)
    planned = {type: min(max(count, least), most[type]) for type, count in found.items()}
    if larger is None:
        return planned
    # Seeds that are given twice may make a batch larger than the bounds.
    return {type: max(count, larger[type]) for type, count in planned.items()}


def _size_to_json(size: Bounds) -> list[Any]:
    return [*(list(each.values()) for each in _parts(size)), size.expanded]


def _size_from_json(stored: Any, bounds: Bounds) -> Bounds:
    *counts, expanded = stored
    nodes, edges, entries = (
        dict(zip(types, map(_count, each), strict=True))
        for types, each in zip(_parts(bounds), counts, strict=True)
    )
    return Bounds(nodes, edges, entries, None if expanded is None else _count(expanded))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no number of nodes or edges")
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f"{value!r} is no number of nodes or seconds")
    return number


def _together(stored: Any, batches: int, rows: int) -> tuple[int, ...]:
    counts = tuple(map(_count, stored))
    if len(counts) != batches or list(counts) != sorted(counts) or max(counts) > rows:
        raise ValueError(f"{stored!r} are no numbers of rows that {batches} batches need together")
    return counts


def largest(one: Bounds, other: Bounds) -> Bounds:
    """The larger of two sizes, type by type."""
    expanded = None if other.expanded is None else max(one.expanded or 0, other.expanded)
    return _by_type(max, one, other, expanded=expanded)


def joined(one: Bounds, other: Bounds, most: Bounds) -> Bounds:
    """The size of two neighbourhoods together, but no more than `most` unless `one` is."""
    expanded = None if one.expanded is None else one.expanded + sum(other.entries.values())
    return _by_type(lambda a, b, c: max(min(a + b, c), a), one, other, most, expanded=expanded)


def of_seeds(one: Bounds, seeds: int, most: Bounds) -> Bounds:
    """The most that so many seeds can sample, if `one` is the most of one, but not over `most`."""
    expanded = None
    if one.expanded is not None and most.expanded is not None:
        expanded = min(seeds * one.expanded, most.expanded)
    return _by_type(lambda a, b: min(seeds * a, b), one, most, expanded=expanded)


def doubled(size: Bounds) -> Bounds:
    """At least twice as many; beyond the bounds too, because seeds may be given twice."""
    return _by_type(lambda count: max(2 * count, 1024), size)


def _by_type(count: Callable[..., int], *sizes: Bounds, expanded: int | None = None) -> Bounds:
    """The size whose counts are `count` of those of `sizes`, type by type."""
    nodes, edges, entries = (
        {type: count(*(each[type] for each in parts)) for type in parts[0]}
        for parts in zip(*map(_parts, sizes), strict=True)
    )
    return Bounds(nodes, edges, entries, expanded)


def exceeds(one: Bounds | None, other: Bounds | None) -> bool:
    """Whether `one` is larger than `other` for at least one type; None: without limit."""
    if one is None or other is None:
        return one is None and other is not None
    if None not in (one.expanded, other.expanded) and (one.expanded or 0) > (other.expanded or 0):
        return True
    return any(
        count > limits[type]
        for counts, limits in zip(_parts(one), _parts(other), strict=True)
        for type, count in counts.items()
    )


def size_of(sample: Sample | Subgraph, bounds: Bounds) -> Bounds:
    """The size of a sample, with all types of `bounds`."""
    if isinstance(sample, Sample):
        nodes = dict.fromkeys(bounds.nodes, sample.num_nodes)
        edges = dict.fromkeys(bounds.edges, sample.num_edges)
        return Bounds(nodes, edges, nodes, len(sample.colptr) - 1)
    row, trees = sample.output.row, sample.output.batch
    entries = {type: len(sample.node.get(type, ())) for type in bounds.entries}
    once: Mapping[NodeKey, int] = entries
    if trees is not None:
        once = {
            type: len(distinct(sample.node[type])) if count else 0
            for type, count in entries.items()
        }
    rows = row if isinstance(row, Mapping) else {None: row}
    return Bounds(once, {type: len(rows.get(type, ())) for type in bounds.edges}, entries)


def check_size(sample: Sample | Subgraph, limits: Bounds) -> None:
    """Raise BatchTooLarge if a sample has more nodes or edges of a type than `limits`."""
    size = size_of(sample, limits)
    if exceeds(size, limits):
        raise BatchTooLarge("a batch is larger than the plan counts", size)


def draw_batches(
    batches: Iterable[Seeds], sampler: Sampler, topologies: Sequence[Topology],
    rows_of: Callable[[Sample | Subgraph], Mapping[str, Int64Array]], rows: Mapping[str, int],
    bounds: Bounds,
) -> DrawnBatches | None:  # fmt: skip
    """Sample a few batches and note their sizes; None: there is no batch. `rows_of` says which rows
    a sample needs of each table, `rows` how many a table has, and `bounds` is the most of a sample.
    BatchTooLarge if one is larger than the sampler's limits."""
    sizes: list[Bounds] = []
    # A byte for each row, where the plan has four for the mapping table.
    wanted = {name: np.zeros(count, np.bool_) for name, count in rows.items()}
    together: dict[str, list[int]] = {name: [] for name in rows}
    expanded, edges, first = 0.0, 0, None
    for seeds in batches:
        report("drawing batches", len(sizes), DRAWN_BATCHES)
        sample = sampler.sample(seeds, batch_key(_KEY, 0, seeds.index), topologies)
        size = size_of(sample, bounds)
        sizes.append(size)
        for name, ids in rows_of(sample).items():
            wanted[name][ids] = True
            together[name].append(int(np.count_nonzero(wanted[name])))
        expanded += _expanded(sample)
        edges += sum(size.edges.values())
        del sample
        first = first or seeds
        if edges > DRAWN_EDGES_MAX or len(sizes) == DRAWN_BATCHES:
            break
    if first is None:
        return None
    report("drawing batches", DRAWN_BATCHES, DRAWN_BATCHES)
    # Once more: adjacency is mapped page by page while it is read first, which takes longer than
    # sampling. The pages of this batch are mapped by now, but have left the processor's caches.
    began = thread_time()
    sampler.sample(first, batch_key(_KEY, 0, first.index), topologies)
    seconds = thread_time() - began
    counts = {name: tuple(each) for name, each in together.items()}
    return DrawnBatches(tuple(sizes), counts, expanded / len(sizes), seconds)


def _expanded(sample: Sample | Subgraph) -> int:
    """The number of nodes whose neighbours were sampled."""
    if isinstance(sample, Sample):
        return sum(sample.num_sampled_nodes[:-1])
    per_hop = sample.output.num_sampled_nodes
    if per_hop is None:
        return sample.num_nodes
    by_type = per_hop.values() if isinstance(per_hop, Mapping) else [per_hop]
    return sum(int(torch.as_tensor(each[:-1]).sum()) for each in by_type if len(each))
