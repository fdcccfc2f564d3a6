"""A sampler that is free: it draws each batch once, keeps the sample, and then replays it.

`gnndrive bench headroom` puts `replaying(…)` into a strategy in place of its sampler. While
`KeptSamples.keeps`, samples are drawn by the strategy's own sampler and kept; afterwards each
sample that is known costs nothing, and any other is drawn. A sample depends on its key and seeds
only, so a replayed batch has the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ClosedError
from gnndrive.common.plugins import find
from gnndrive.common.records import EdgeKey, NodeKey, Sample, Seeds, Subgraph
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology
from gnndrive.strategies.base import Strategy, batches_of


class KeptSamples:
    """The samples of some batches; several threads may use one object.

    Args:
        bytes_most: a sample that would need more in all is not kept, and none after it.

    Attributes:
        keeps: whether samples that are drawn are kept; set it to False before they are replayed.
        count: the number of samples that are kept.
        nbytes: their bytes.
        full: whether a sample was not kept for want of room.
        replayed: how many times a sample was taken from here.
    """

    def __init__(self, bytes_most: int) -> None:
        self.keeps, self.full = True, False
        self.nbytes = self.replayed = 0
        self._most, self._lock = bytes_most, threading.Lock()
        self._samples: dict[int, Sample | Subgraph] = {}

    @property
    def count(self) -> int:
        """See the class."""
        return len(self._samples)

    def add(self, key: int, sample: Sample | Subgraph) -> None:
        """Keep a sample, if there is room."""
        nbytes = bytes_of(sample)
        with self._lock:
            if key in self._samples:
                return
            self.full = self.full or self.nbytes + nbytes > self._most
            if not self.full:
                self._samples[key] = sample
                self.nbytes += nbytes

    def find(self, key: int) -> Sample | Subgraph | None:
        """The sample of the batch with `key`; None: it is not kept, or samples are being kept."""
        if self.keeps:
            return None
        found = self._samples.get(key)
        if found is not None:
            with self._lock:
                self.replayed += 1
        return found


def bytes_of(value: Any) -> int:
    """Bytes of all arrays and tensors in a sample."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if is_dataclass(value):
        return sum(bytes_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return sum(map(bytes_of, value.values()))
    return sum(map(bytes_of, value)) if isinstance(value, list | tuple) else 0


def with_replaying_sampler(strategy: Strategy, kept: KeptSamples) -> Strategy:
    """The strategy with a sampler that keeps its samples in `kept`, or replays them from there.

    Its name is that under which the sizes of the same batches are known.
    """
    sampler = replaying(strategy.sampler, kept)
    return replace(strategy, name=batches_of(strategy), sampler=sampler)


def replaying(kind: Any, kept: KeptSamples) -> type[Sampler]:
    """A sampler class that keeps or replays the samples of another one.

    Args:
        kind: the sampler that draws: a plug-in's name, or its class.
        kept: the samples.
    """
    plugin: type[Sampler] = find("samplers", kind)

    class Replaying(Sampler):
        """Replays the samples in `kept`, and draws the others."""

        name = plugin.name
        shares_numbers = plugin.shares_numbers

        def __init__(self, own: Sampler) -> None:
            self._own, self._stopped = own, False

        @classmethod
        def make(cls, context: SamplerContext) -> Sampler:
            """See `Sampler.make`."""
            # Samples that are kept must not hold blocks of a loader's pool.
            return cls(plugin.make(replace(context, empty=np.empty) if kept.keeps else context))

        def sample(
            self, seeds: Seeds, key: int, topologies: Sequence[Topology]
        ) -> Sample | Subgraph:
            """See `Sampler.sample`."""
            if self._stopped:
                raise ClosedError("the epoch was ended while this batch was to be sampled")
            found = kept.find(key)
            if found is None:
                found = self._own.sample(seeds, key, topologies)
                if kept.keeps:
                    kept.add(key, found)
            return found

        def stop(self) -> None:
            """See `Sampler.stop`."""
            self._stopped = True
            self._own.stop()

        def bounds(
            self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
            degrees: Mapping[EdgeKey, Degrees] | None = None,
        ) -> Bounds:  # fmt: skip
            """See `Sampler.bounds`."""
            return self._own.bounds(batch_size, nodes, edges, degrees)

    return Replaying
