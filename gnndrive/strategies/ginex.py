"""Ginex (VLDB 2022): superbatches that are sampled ahead, and Belady's rule over all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gnndrive.loader.arguments import preset
from gnndrive.loader.assembly import Assembly
from gnndrive.strategies.base import Scheme
from gnndrive.strategies.superbatches.scheme import SamplesAhead


@dataclass(frozen=True, kw_only=True)
class Ginex(SamplesAhead):
    """Ginex, "SSD-enabled Billion-scale Graph Neural Network Training on a Single Machine via
    Provably Optimal In-memory Caching".

    A superbatch of many batches is sampled first, its samples are kept on disk, and then its
    batches are gathered and trained on (section 3.1). Sampling has a neighbour cache of the lists
    with the highest ratio of out- to in-degree (section 3.2). From the samples an inspector learns
    each next use of each row, so that the feature cache follows Belady's rule for the whole
    superbatch (sections 3.3 and 3.4). Each phase has all the memory (section 3.5).

    Where this differs: a superbatch is sampled while the one before is extracted, and the first
    ones are short, so that the first batch comes soon; phases="apart" is the paper's order. How
    long the others are follows from the buffer's misses; GNNDrive's experiments had 1,500 batches.
    Rows are loaded when a batch needs them, not before a superbatch, and stay for the next one.
    Next uses are codes in the samples' records, not sets of what enters and leaves the cache. The
    neighbour cache belongs to topology="direct" and is made when the loader starts.

    Args:
        paper: whether to run as published: phases="apart" and the adjacency on disk, with all the
            memory for the neighbour cache while batches are sampled. What you give as `tuning=`
            counts all the same.
        superbatch, folder, phases: see `SamplesAhead`.
    """

    name: str = "ginex"
    published: str = "Ginex (VLDB 2022)"
    paper: bool = False

    does: ClassVar[str] = "samples some hundred batches ahead"
    pays: ClassVar[str] = "a batch's rows lie far apart"

    def preset(self, assembly: Assembly) -> Assembly:
        """See `Strategy.preset`."""
        if not self.paper:
            return assembly
        own = preset(assembly.own, topology="direct")
        return replace(assembly, own=own, strategy=replace(self, tiers=("disk",)))

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        apart = replace(self, phases="apart") if self.paper else self
        return super(Ginex, apart).open(assembly)
