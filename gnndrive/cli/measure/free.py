"""What `gnndrive bench headroom` makes free: reads without a disk, and samples that are replayed.

`FreeReads` is a loader's `engine=` for which the disk is free: rows land at once, as zeros, and no
read is carried out. It does all that the threads engine does but for the disk: extents are taken,
rows are copied out of staging to their places, the event loop is woken. The bytes come from
/dev/zero, so a training step that looks at them takes its usual time, but learns nothing. Never use
it for anything but timing. A loader's second engine, which reads the adjacency while samples are
drawn, must give the true bytes, because they decide what a batch is. So those reads are answered
from the page cache; a pass over the same batches beforehand fills it.

`with_replaying_sampler` puts a sampler into a strategy in place of its own. While
`KeptSamples.keeps`, samples are drawn by the strategy's own sampler and kept; afterwards each
sample that is known costs nothing, and any other is drawn. A sample depends on its key and seeds
only, so a replayed batch has the same bytes.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ClosedError
from gnndrive.common.plugins import find
from gnndrive.common.records import EdgeKey, EngineSettings, NodeKey, Sample, Seeds, Subgraph
from gnndrive.disk.engines.threads import Threads
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.topologies.base import Topology
from gnndrive.strategies.base import Strategy, batches_of

# ---- reads


class FreeReads(Threads):
    """Completes reads of rows without a disk, and those of the adjacency from the page cache.

    The two are told apart by `settings.gives_way`, which the engine of the rows has.
    """

    name = "free"

    def __init__(self, settings: EngineSettings) -> None:
        # No read waits, so that more threads than processors would only take turns.
        threads = min(settings.depth, os.cpu_count() or 1)
        super().__init__(replace(settings, depth=threads))
        self._opening, self._files = threading.Lock(), dict[tuple[int, int], int]()
        self._zeros: int | None = None
        if settings.gives_way:
            self._zeros = self._files[0, 0] = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        self._close_files = weakref.finalize(self, _close, self._files)

    def _descriptor(self, job: ReadJob) -> int:
        """A descriptor of zeros, or one of the job's file that reads through the page cache."""
        if self._zeros is not None:
            return self._zeros
        status = os.fstat(job.fd)
        key = status.st_dev, status.st_ino
        with self._opening:
            if key not in self._files:
                path = f"/proc/self/fd/{job.fd}"
                self._files[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._files[key]

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        await super().aclose()
        self._close_files()


def _close(files: dict[tuple[int, int], int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()


# ---- samples


class KeptSamples:
    """The samples of some batches; several threads may use one object.

    Args:
        bytes_most: a sample that would need more in all is not kept, and none after it.

    Attributes:
        keeps: whether samples that are drawn are kept; set it to False before they are replayed.
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
        """How many samples are kept."""
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
    plugin: type[Sampler] = find("samplers", strategy.sampler)

    class Replaying(Sampler):
        """Replays the samples in `kept`, and draws the others."""

        name = plugin.name
        shares_numbers = plugin.shares_numbers

        def __init__(self, own: Sampler) -> None:
            self._own, self._stopped = own, False

        @classmethod
        def make(cls, context: SamplerContext) -> Sampler:
            """Samples that are kept must not hold blocks of a loader's pool."""
            return cls(plugin.make(replace(context, empty=np.empty) if kept.keeps else context))

        def sample(
            self, seeds: Seeds, key: int, topologies: Sequence[Topology]
        ) -> Sample | Subgraph:
            """See `Sampler.sample`."""
            if self._stopped:
                raise ClosedError("the epoch was ended while this batch was to be sampled")
            if (found := kept.find(key)) is None:
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

    return replace(strategy, name=batches_of(strategy), sampler=Replaying)
