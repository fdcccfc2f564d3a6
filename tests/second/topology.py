"""A topology with index pointers and indices copied into memory of its own, 8 bytes each."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from gnndrive.common.records import TopologyChoice
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies.base import Topology, TopologyContext, TopologyQuestion
from tests.second.use import used

WIDTH = 8


class Widened(Topology):
    """A CSC graph of int64, also where the store has narrower numbers."""

    name = "widened"

    def __init__(self, context: TopologyContext) -> None:
        file = context.file
        check_indptr(context.indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes, self.num_edges = len(context.indptr) - 1, file.row_count
        self._indptr = context.indptr.astype(np.int64)
        self._indices = np.empty(self.num_edges, np.int64)
        with SequentialReader(file) as reader:
            for first, indices in reader.stretches():
                self._indices[first : first + len(indices)] = indices
        self.nbytes = self._indptr.nbytes + self._indices.nbytes
        self._csc = make_csc(self._indptr, self.num_edges, self._indices, WIDTH)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        nbytes = sum(WIDTH * (size.nodes + 1 + size.edges) for size in question.sizes)
        why = "as asked for"
        if not question.asked:
            if nbytes > question.room(1):
                return None
            why = "because it fits beside a batch"
        return TopologyChoice(cls, f"widened, {why}", nbytes)

    @classmethod
    def make(cls, context: TopologyContext) -> Self:
        return cls(context)

    def csc(self) -> Any:
        used["topologies"] += 1
        return self._csc
