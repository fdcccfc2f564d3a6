"""The recorded sampler: reads the samples of a pack instead of drawing them (DiskGNN §3).

It goes with the schedule `recorded`, whose seeds name the batch. It reads no adjacency, and what it
returns has original edge numbers and the places of the batch's rows in the packed files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.records import EdgeKey, NodeKey, Sample, Seeds, Subgraph
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.packed.recording import Recording


class Recorded(Sampler):
    """Reads the recorded batches of a pack."""

    name = "recorded"
    shares_numbers = True  # if the pack's batches do, which strategies/diskgnn.py sees to

    def __init__(self, recording: Recording, empty: Allocate = np.empty) -> None:
        self._recording, self._empty, self._stopped = recording, empty, False

    @classmethod
    def make(cls, context: SamplerContext) -> Recorded:
        """See `Sampler.make`."""
        if context.recording is None:
            raise ConfigError(
                "the recorded sampler replays a pack: pack the store first (gnndrive pack)"
            )
        return cls(context.recording, context.empty)

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample | Subgraph:
        """See `Sampler.sample`; reads the batch that `seeds.given` names."""
        number = None if seeds.given is None else seeds.given()
        if not isinstance(number, int):
            raise ConfigError(
                "a loader that replays a pack has the recorded batches only: to sample around "
                "other seeds, make a loader with strategy='gnndrive'"
            )
        if self._stopped:
            raise ClosedError("the epoch was ended while this batch was to be read")
        return self._recording.read(number, seeds.index, self._empty)

    def stop(self) -> None:
        """See `Sampler.stop`."""
        self._stopped = True

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`; the sizes of the largest recorded batches, whatever is given."""
        sizes = self._recording.sizes
        distinct = {type: min(count, nodes[type]) for type, count in sizes.nodes.items()}
        return Bounds(distinct, sizes.edges, sizes.nodes)
