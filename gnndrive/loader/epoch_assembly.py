"""`EpochAssembly`: makes one epoch's inputs and batches; the stages call it in worker threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch

from gnndrive.buffer.devices.base import Gathering
from gnndrive.buffer.feature_buffer import Lease
from gnndrive.common.array_pool import divided
from gnndrive.common.errors import BatchTooLarge, ConfigError
from gnndrive.common.padding import Part, Parts, padded
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.epoch_state import EpochState
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.runtime import APART, Runtime
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.epoch import EpochInputs, Extracted, SampledBatch
from gnndrive.pipeline.output_queue import References
from gnndrive.pipeline.workers import carried
from gnndrive.plan.drawn import check_size, doubled, exceeds, size_of
from gnndrive.sampling.samplers._native import scratch_bytes
from gnndrive.sampling.samplers.base import Bounds, Sampler, batch_key
from gnndrive.sampling.schedules.base import Window
from gnndrive.store.format import torch_dtype
from gnndrive.strategies.base import FeedContext


class EpochAssembly:
    """Makes one epoch's inputs and batches; see `pipeline.epoch.BatchAssembly`.

    The epoch begins at `state`. A batch's random draws depend on `seed`, which the user gave or
    which was drawn for this epoch; on the epoch's number, if the user gave `seed` or the scheme is
    numbered; and on the batch's own number. `batches` has the seeds of those that are left.
    """

    def __init__(
        self, assembly: Assembly, runtime: Runtime, ranks: Ranks, state: EpochState, seed: int
    ) -> None:
        self._assembly, self._collate = assembly, assembly.collate
        self._pool, self._attributes = runtime.array_pool, runtime.attributes
        self.runtime, self.ranks, self._seed = runtime, ranks, ranks.drawing_seed(seed)
        self._files = {table.name: table.file for table in self._collate.tables}
        self._of_edges = {table.name for table in self._collate.tables if table.of_edges}
        self._padding = assembly.padding
        numbered = assembly.seed is not None or assembly.scheme.numbered
        self._number = state.epoch if numbered else 0
        self.batches = assembly.batches(ranks, seed, self._number, state.batches)
        if assembly.batch_sampler is not None:
            # torch's samplers draw from the global generator at their first batch. Here, in the
            # user's thread, that happens before the user's next draw; in the loop thread, it could
            # happen before or after it.
            self.batches = chain(list(islice(self.batches, 1)), self.batches)
        self._windows = partial(assembly.windows_left, ranks, seed, self._number, state.batches)
        self._done = state.batches // ranks.per_step
        self._end: int | None = None  # how many batches the iterator yields in all, if known
        with contextlib.suppress(TypeError):  # a batch sampler without a length
            self._end = assembly.steps(state.batches, seed, self._number)

    def inputs(self, batches: Iterator[tuple[Window, Seeds]], first: int) -> EpochInputs:
        """Make what the pipeline needs to run the epoch from batch `first` on, which is not 0 after
        a warm-up or a change of the plan; `batches` are its seeds from there on."""
        larger, self._limits = self.runtime.larger_batch, self.runtime.settings.limits
        if larger is not None:
            # If it does not fit, or another epoch is running, that is an error at such a batch.
            with contextlib.suppress(ConfigError):
                self._plan_for(*larger)
        self._limits = self.runtime.settings.limits
        runtime, settings = self.runtime, self.runtime.settings
        context = FeedContext(
            partial(self._windows, first), settings.request, settings.plan, settings.policy,
            self._pool.empty, runtime.adjacency.load, runtime.adjacency.free, self._end,
            self._done,
        )  # fmt: skip
        feed = self._assembly.scheme.feed(context)
        inputs = EpochInputs(self._number, self._seed, batches, self._sampler(), self, feed, first)
        if feed.extracts:
            return inputs
        with self.runtime.changing_plan(APART):
            return inputs

    def _sampler(self) -> Sampler:
        return self._assembly.sampler(self._pool.empty, self._limits)

    def next_part(
        self, before: EpochInputs, batches: Iterator[tuple[Window, Seeds]]
    ) -> EpochInputs:
        """The part that follows `before`, which has not drawn `batches`; see `Feed.following`."""
        following = before.feed.following
        assert following is not None
        if isinstance(following, int):
            return self.inputs(batches, following)
        return replace(before, feed=following, sampler=self._sampler())

    def prepare(self) -> None:
        """Read the labels, while the first batch is sampled."""
        self._collate.prepare()

    def rows_of(self, sample: Sample | Subgraph) -> Mapping[str, Int64Array]:
        """See `Collate.rows_of` and `check_sample`; the rows of a replayed batch are those of its
        own file, and a sample may say where the rows of a table lie."""
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
        """Have the runtime plan for a batch that is larger than planned (`size` None: sampling it
        was given up); blocks. ConfigError if it does not fit, or another iterator is running."""
        self._plan_for(seeds, batch_key(self._seed, self._number, seeds.number), size)

    def _plan_for(self, seeds: Seeds, key: int, size: Bounds | None) -> None:
        # If this is refused because another epoch is running, a later one begins with it.
        self.runtime.larger_batch = seeds, key, size
        with self.runtime.changing_plan():
            self.runtime.larger_batch, before = None, self.runtime.settings
            if before.limits is not self._limits:
                return  # another iterator has changed the plan meanwhile, so it is tried first
            size = size or self._measure(seeds, key, before)
            settings = self._assembly.settings_for_larger(before, size)
            if not exceeds(settings.limits, before.limits):
                raise ConfigError(
                    "the sampler refused a batch that is no larger than its limits: correct the "
                    "sampler"
                )
            self.runtime.use(settings)

    def _measure(self, seeds: Seeds, key: int, before: RuntimeSettings) -> Bounds | None:
        """The size of a batch, sampled in the feature buffer's memory; None: too large for that."""
        limits, room = doubled(before.request.planned), before.plan.between_epochs_bytes
        if before.plan.sampling_bytes:
            room -= before.plan.topology.nbytes  # it is read into the feature buffer's place
        adjacency = self.runtime.adjacency
        while scratch_bytes(limits) <= room:
            try:
                sampler = self._assembly.sampler(limits=limits)
                adjacency.load()
                sample = sampler.sample(seeds, key, adjacency.topologies)
            except BatchTooLarge:
                limits = doubled(limits)
                continue
            size = size_of(sample, limits)
            # Edges that are drawn twice, or first drawn and then replaced by induced ones, take
            # scratch memory that the sample does not show. These limits are enough for them.
            return size if exceeds(size, before.limits) else limits
        return None

    def make(
        self, item: Extracted, gathered: Callable[[], object]
    ) -> Generator[tuple[Any, References], None, None]:
        """Gather a group's rows and join them with its samples; see `BatchAssembly.make`."""
        if len(item.batches) > 1:
            yield from self._make_group(item, gathered)
            return
        (batch,) = item.batches
        parts = self._parts(item)
        rows = {
            name: item.lease.gather(name, torch_dtype(file.dtype), file.row_shape, parts[name])
            for name, file in self._files.items()
        }
        gathered()
        memory = self._pool.references(each.data_ptr() for each in rows.values())
        yield self._joined(batch.seeds, *self._padded(batch), rows), memory

    def _make_group(
        self, item: Extracted, gathered: Callable[[], object]
    ) -> Generator[tuple[Any, References], None, None]:
        """Make batch after batch while the rows of the others are being copied."""
        assert isinstance(item.lease, Lease), "only this process's own buffer admits groups"
        batches, whole, copying = item.batches, dict[str, torch.Tensor](), dict[str, Gathering]()
        samples, numbers = zip(*map(self._padded, batches), strict=True)
        rows, parts = [dict[str, torch.Tensor]() for _ in batches], self._parts(item)
        with contextlib.ExitStack() as ends:
            for name, file in self._files.items():
                kind = torch_dtype(file.dtype), file.row_shape
                whole[name], copying[name] = item.lease.begin_gather(name, *kind, parts[name])
                ends.callback(copying[name].end)
                divisions = divided(whole[name], (range(size) for _, size in parts[name]))
                for own, part in zip(rows, divisions, strict=True):
                    own[name] = part
            memory = self._pool.references(each.data_ptr() for each in whole.values())
            with contextlib.suppress(Exception):  # the batch that it is about raises it at its turn
                self._collate.pick_together(
                    samples, numbers, rows, self._attributes, self._pool.empty
                )
            until, left = dict.fromkeys(whole, 0), set(whole)
            for number, batch in enumerate(batches):
                for name, each in parts.items():
                    until[name] += each[number][1]
                    if copying[name].wait(until[name]) and name in left:
                        left.remove(name)
                        if not left:
                            gathered()
                made = samples[number], numbers[number], rows[number]
                yield self._joined(batch.seeds, *made), memory

    def _parts(self, item: Extracted) -> dict[str, Parts]:
        """By table: how many rows each batch of a group has, and how many with its padding."""
        return {
            name: [self._part(name, len(batch.rows[name])) for batch in item.batches]
            for name in self._files
        }

    def _part(self, table: str, rows: int) -> Part:
        if self._padding is None:
            return rows, rows
        of_edges = table in self._of_edges
        return rows, (self._padding.edges if of_edges else self._padding.nodes)(rows)

    def _padded(self, batch: SampledBatch) -> tuple[Sample | Subgraph, dict[str, Int64Array]]:
        """A batch's sample, and the numbers of its edges by table, with padding."""
        sample, numbers, empty = batch.sample, _numbers_of(batch), self._pool.empty
        if self._padding is None:
            return sample, numbers
        numbers = {
            name: padded(numbers[name], [self._part(name, len(numbers[name]))], empty)
            for name in self._of_edges.intersection(numbers)
        }
        return self._padding.sample(sample, empty), numbers

    def _joined(
        self, seeds: Seeds, sample: Sample | Subgraph, numbers: dict[str, Int64Array],
        rows: dict[str, torch.Tensor],
    ) -> Any:  # fmt: skip
        try:
            return self._collate(
                seeds, sample, numbers, rows, self._attributes, self._pool.empty,
                self.runtime.device,
            )  # fmt: skip
        except StopIteration as error:  # `make`, a generator, would hide what it was
            raise carried(error) from error


def _numbers_of(batch: SampledBatch) -> dict[str, Int64Array]:
    """The node ids and edge numbers among a batch's rows; others are places in a file."""
    if batch.sample.replayed is not None:
        return {}
    given = batch.sample.rows or {}
    return {name: each for name, each in batch.rows.items() if name not in given}
