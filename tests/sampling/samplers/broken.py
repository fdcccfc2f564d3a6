"""Samplers that each break the contract in one place, for the test that this is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gnndrive.common.errors import StoreError
from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology
from tests.second import Runs


class Broken(Runs):
    """A sampler whose samples are changed before they are returned."""

    def changed(self, sample: Sample) -> Sample:
        raise NotImplementedError

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        return self.changed(super().sample(seeds, key, topologies))


class Swapped(Broken):
    """Has the seeds in another order."""

    def changed(self, sample: Sample) -> Sample:
        return replace(sample, node=sample.node[::-1].copy())


class Misplaced(Broken):
    """Names the position beside that of the edge."""

    def changed(self, sample: Sample) -> Sample:
        return replace(sample, edge=sample.edge[::-1].copy())


class Uncounted(Broken):
    """Counts all nodes as seeds."""

    def changed(self, sample: Sample) -> Sample:
        nothing = [0] * (len(sample.num_sampled_nodes) - 1)
        return replace(sample, num_sampled_nodes=(len(sample.node), *nothing))


class Stateful(Runs):
    """Draws from how often it was called."""

    calls = 0

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        self.calls += 1
        return super().sample(seeds, key + self.calls, topologies)


class Keyless(Runs):
    """Draws the same in every batch."""

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        return super().sample(seeds, 0, topologies)


class Bold(Runs):
    """Says that no sample has more than two nodes."""

    def bounds(self, *arguments: Any) -> Bounds:
        bounds = super().bounds(*arguments)
        few = {type: min(count, 2) for type, count in bounds.nodes.items()}
        return Bounds(few, bounds.edges, few)


class Deaf(Runs):
    """Does not stop."""

    def stop(self) -> None:
        pass


class Late(Runs):
    """Looks whether it was stopped before it begins, and then no more."""

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        super()._refuse_stopped()
        return super().sample(seeds, key, topologies)

    def _refuse_stopped(self) -> None:
        pass


class Trusting(Runs):
    """Believes the graph."""

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        try:
            return super().sample(seeds, key, topologies)
        except StoreError:
            return super().sample(replace(seeds, node=seeds.node[:0]), key, topologies)


class Own(Broken):
    """Has arrays of its own."""

    def changed(self, sample: Sample) -> Sample:
        return replace(sample, row=sample.row.copy())


class Jealous(Runs):
    """Samples plainly although the context has `subgraphs`."""

    @classmethod
    def make(cls, context: SamplerContext) -> Sampler:
        return cls(context)
