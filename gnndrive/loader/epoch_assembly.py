"""`EpochAssembly`: makes one epoch's inputs and batches.

`StoreLoader` makes one for each epoch. The pipeline's stages call it in worker threads: for the
rows that a sample needs, and for the finished batch. `BatchIterator` has it plan again at a batch
that is larger than the plan counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gnndrive.common.errors import BatchTooLarge, ConfigError
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.runtime import APART, Runtime
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.batch import Extracted
from gnndrive.pipeline.epoch import EpochInputs, Feed
from gnndrive.pipeline.output_queue import References
from gnndrive.plan.drawn import check_size, doubled, exceeds, size_of
from gnndrive.sampling.samplers._native import scratch_bytes
from gnndrive.sampling.samplers.base import Bounds, Sampler, batch_key
from gnndrive.sampling.schedules.base import Window
from gnndrive.store.format import torch_dtype
from gnndrive.strategies.base import FeedContext


class EpochAssembly:
    """Makes one epoch's inputs and batches; see `pipeline.epoch.BatchAssembly`.

    Args:
        assembly: the loader's assembly.
        runtime: has the attributes, the array pool and the device.
        number: the epoch's number if the user gave `seed` or the scheme is numbered, else 0.
        seed: the user's, or the one drawn for this epoch, as `Ranks.drawing_seed` returns it. A
            batch's random draws depend on `seed`, `number` and the batch's own number.
        windows: see `Assembly.windows_left`.
        end: how many batches the iterator yields in all; None: it is not known.
    """

    def __init__(
        self, assembly: Assembly, runtime: Runtime, number: int, seed: int,
        windows: Callable[[int], Iterator[Window]] = lambda yielded: iter(()),
        end: int | None = None,
    ) -> None:  # fmt: skip
        self._assembly, self._collate = assembly, assembly.collate
        self._pool, self._attributes = runtime.array_pool, runtime.attributes
        self._device = runtime.device
        self._number, self._seed = number, seed
        self._files = {table.name: table.file for table in self._collate.tables}
        self._runtime, self._windows, self._end = runtime, windows, end

    def inputs(self, batches: Iterator[tuple[Window, Seeds]], first: int) -> EpochInputs:
        """Make what the pipeline needs to run the epoch from batch `first` on.

        Args:
            batches: the seeds of the batches from `first` on, each with its window.
            first: the index of the first batch; not 0 after a warm-up or a change of the plan.
        """
        larger, self._limits = self._runtime.larger_batch, self._runtime.settings.limits
        if larger is not None:
            # If it does not fit, or another epoch is running, that is an error at such a batch.
            with contextlib.suppress(ConfigError):
                self._plan_for(*larger)
        self._limits = self._runtime.settings.limits
        feed = self._feed(first)
        inputs = EpochInputs(self._number, self._seed, batches, self._sampler(), self, feed, first)
        if feed.extracts:
            return inputs
        with self._runtime.changing_plan(APART):
            return inputs

    def _feed(self, first: int) -> Feed:
        runtime = self._runtime
        settings = runtime.settings
        context = FeedContext(
            partial(self._windows, first), settings.request, settings.plan, settings.policy,
            self._pool.empty, runtime.load_graph, runtime.free_graph, self._end,
        )  # fmt: skip
        return self._assembly.scheme.feed(context)

    def _sampler(self) -> Sampler:
        return self._assembly.sampler(self._pool.empty, self._limits)

    def next_part(
        self, before: EpochInputs, batches: Iterator[tuple[Window, Seeds]]
    ) -> EpochInputs:
        """The part that follows `before`; see `Feed.following`.

        Args:
            before: the part that has ended.
            batches: the seeds that it has not drawn.

        Raises:
            ConfigError: see `Runtime.changing_plan`.
        """
        following = before.feed.following
        assert following is not None
        if isinstance(following, int):
            return self.inputs(batches, following)
        return replace(before, feed=following, sampler=self._sampler())

    def prepare(self) -> None:
        """Read the labels, while the first batch is sampled."""
        self._collate.prepare()

    def rows_of(self, sample: Sample | Subgraph) -> Mapping[str, Int64Array]:
        """See `Collate.rows_of`; the rows of a replayed batch are those of its own file, and a
        sample may say where the rows of a table lie.

        Raises:
            BatchTooLarge: the sample is larger than the plan counts.
        """
        if sample.replayed is not None:
            return sample.replayed.rows
        self.check_sample(sample)
        rows = self._collate.rows_of(sample, self._attributes, self._pool.empty)
        given = sample.rows or {}
        return {name: given.get(name, numbers) for name, numbers in rows.items()}

    def check_sample(self, sample: Sample | Subgraph) -> None:
        """See `BatchAssembly.check_sample`."""
        if self._limits is not None:
            check_size(sample, self._limits)

    def plan_again(self, seeds: Seeds, size: Bounds | None) -> None:
        """Have the runtime plan for a batch that is larger than its plan counts; blocks.

        Args:
            seeds: the batch's seeds.
            size: its size; None: unknown, because sampling it was given up.

        Raises:
            ConfigError: the batch does not fit into `memory=`, another iterator is running, or the
                sampler gave the batch up although it is no larger than planned.
            StoreError, ReadError: sampling it failed.
        """
        self._plan_for(seeds, batch_key(self._seed, self._number, seeds.number), size)

    def _plan_for(self, seeds: Seeds, key: int, size: Bounds | None) -> None:
        # If this is refused because another epoch is running, a later one begins with it.
        self._runtime.larger_batch = seeds, key, size
        with self._runtime.changing_plan():
            self._runtime.larger_batch, before = None, self._runtime.settings
            if before.limits is not self._limits:
                return  # another iterator has changed the plan meanwhile, so it is tried first
            size = size or self._measure(seeds, key, before)
            settings = self._assembly.settings_for_larger(before, size)
            if not exceeds(settings.limits, before.limits):
                raise ConfigError(
                    "the sampler refused a batch that is no larger than its limits: correct the "
                    "sampler"
                )
            self._runtime.use(settings)

    def _measure(self, seeds: Seeds, key: int, before: RuntimeSettings) -> Bounds | None:
        """Sample a batch in the memory that the feature buffer has left, and return its size; None:
        it is too large for that, by its scratch alone."""
        limits, room = doubled(before.request.planned), before.plan.between_epochs_bytes
        if before.plan.sampling_bytes:
            room -= before.plan.topology.nbytes  # it is read into the feature buffer's place
        while scratch_bytes(limits) <= room:
            try:
                sampler = self._assembly.sampler(limits=limits)
                sample = sampler.sample(seeds, key, self._runtime.topologies)
            except BatchTooLarge:
                limits = doubled(limits)
                continue
            size = size_of(sample, limits)
            # Edges that are drawn twice, or first drawn and then replaced by induced ones, take
            # scratch memory that the sample does not show. These limits are enough for them.
            return size if exceeds(size, before.limits) else limits
        return None

    def make(self, item: Extracted, gathered: Callable[[], object]) -> tuple[Any, References]:
        """Gather a batch's rows and join them with its sample; see `BatchAssembly.make`."""
        rows = {
            name: item.lease.gather(name, torch_dtype(file.dtype), file.row_shape)
            for name, file in self._files.items()
        }
        gathered()
        memory = self._pool.references(each.data_ptr() for each in rows.values())
        numbers = _edge_numbers(item.sample, item.rows)
        batch = self._collate(
            item.seeds, item.sample, numbers, rows, self._attributes, self._pool.empty,
            self._device,
        )  # fmt: skip
        return batch, memory


def _edge_numbers(
    sample: Sample | Subgraph, rows: Mapping[str, Int64Array]
) -> Mapping[str, Int64Array]:
    """The rows that are node ids or edge numbers; others are places in a file."""
    if sample.replayed is not None:
        return {}
    given = sample.rows or {}
    return {name: numbers for name, numbers in rows.items() if name not in given}
