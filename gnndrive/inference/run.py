"""`Run`: one computation, from the layer and the target where it stands to the result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.io.direct_writer import DirectWriter
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.memory import (
    available_memory,
    format_size,
    least_text,
    return_free_memory,
)
from gnndrive.common.names import did_you_mean
from gnndrive.common.progress import Progress
from gnndrive.common.records import NodeKey, TableFile, ends_of
from gnndrive.common.threads import thread_pool
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, block_bytes
from gnndrive.disk.row_reader import RowReader
from gnndrive.inference import degrees
from gnndrive.inference.batch_call import BatchCall
from gnndrive.inference.degrees import Normaliser, convs_of
from gnndrive.inference.edge_values import EdgeValues
from gnndrive.inference.layer_pass import run_pass
from gnndrive.inference.layers import Layers
from gnndrive.inference.memory import RowPlan, TooLittleMemory, plan_rows
from gnndrive.inference.outcome import Outcome
from gnndrive.inference.progress import Done, Record
from gnndrive.inference.row_cache import RowReads
from gnndrive.inference.self_check import REFUSALS
from gnndrive.inference.targets import TargetBatch, Targets
from gnndrive.plan.plan import DEFAULT_SHARE
from gnndrive.plan.remedies import halves
from gnndrive.store.calibration import checked_gap
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, dtype_name, npy_header, torch_dtype
from gnndrive.store.layout.arrays import table_file
from gnndrive.store.reader import Store

BATCH_LEAST = 64  # the smallest batch size that a refusal names
SYNC_BYTES = 64 << 20  # a kill costs at most the computation of so many bytes of rows


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The checked arguments of `infer`; `values` has attributes of edges by the argument's name."""

    memory: int | None
    device: torch.device | None
    features: str
    values: dict[str, str]
    dtype: str | None
    batch_size: int
    engine: Any
    io_depth: int


class Run:
    """One computation, whose files lie where `outcome` says; ConfigError: an argument does not fit
    the store."""

    def __init__(
        self,
        store: Store,
        layers: Layers,
        settings: RunSettings,
        outcome: Outcome,
        progress: Progress | None,
    ) -> None:
        self._store, self._layers, self._settings = store, layers, settings
        self._outcome, self._progress = outcome, progress
        self._rows = {each.type: each.num_nodes for each in store.all_nodes()}
        self._entries = len(layers) * (store.num_nodes + store.num_edges)
        self._entries_done = 0
        self._record = Record.load(outcome.folder)
        if not self._is_whole():
            self._record.layers.clear()
        self._convs = convs_of(layers.modules)
        self._reads: RowReads | None = None
        self._warned = False
        self._call: BatchCall
        self._thread: ThreadPoolExecutor
        self.stats: dict[str, int] = {}

    def run(self) -> None:
        """Compute all layers that are not finished, and make the last one the result."""
        self._inputs(0)  # complains before anything is made
        try:
            self._outcome.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(self._outcome.folder, error) from error
        with ExitStack() as stack:
            stack.callback(return_free_memory)
            where = stack.enter_context(self._layers.evaluated(self._settings.device))
            stack.enter_context(torch.inference_mode())
            reader = RowReader(self._store, self._settings.engine, self._settings.io_depth)
            stack.callback(reader.close)
            values = {
                argument: EdgeValues(self._store, self._store.all_edges(), name, reader)
                for argument, name in self._settings.values.items()
            }
            normaliser = Normaliser(self._convs, self._store.all_edges(), values.get("edge_weight"))
            stack.enter_context(normaliser.in_place())
            stack.callback(self._close_reads)
            self._thread = stack.enter_context(thread_pool(1, "gnndrive-blocks"))
            self._call = BatchCall(self._store, self._layers, values, normaliser, where)
            for layer in range(len(self._layers)):
                with self._store.unchanged():
                    self._run_layer(layer)
        last = len(self._layers) - 1
        self._outcome.finish([(type, self._info(last, type)) for type in self._made_types(last)])

    # ---- layers

    def _run_layer(self, layer: int) -> None:
        """Compute what is left of a layer, and remove the rows of the one before it."""
        if layer == len(self._record.layers):
            self._record.layers.append({})
        later = len(self._record.layers) > layer + 1
        files = {} if later else self._inputs(layer)
        for type in self._rows:
            targets = self._targets(type, self._rows if later else files)
            done = self._record.layers[layer].get(type)
            if later or (done is not None and done.finished):
                self._entries_done += targets.entries
            elif type in files and targets.count:
                self._run_type(layer, targets, files)
            else:
                self._record.layers[layer][type] = Done(None, finished=True)
        self._entries_done = (layer + 1) * self._entries // len(self._layers)
        if later:
            return
        self._tell()
        if not self._made_types(layer):
            raise ConfigError(
                f"layer {layer + 1} returned rows of none of the node types "
                f"{', '.join(map(str, self._rows))}: return a dict with a tensor for each type"
            )
        self._record.save()
        if layer:
            for type in self._made_types(layer - 1):
                (self._outcome.base / self._info(layer - 1, type).file).unlink(missing_ok=True)

    def check_next(self, layer: int) -> None:
        """Check that the layer after `layer` has memory for the rows whose width is known by now;
        ConfigError: it has not."""
        if layer + 1 == len(self._layers) or self._settings.memory is None:
            return  # or there is no limit but what is free then
        files = self._inputs(layer + 1)
        for type in self._rows:
            targets = self._targets(type, files)
            if type in files and targets.count:
                self._plan(layer, targets, files)

    def _targets(
        self, type: NodeKey, sources: Container[NodeKey], batch_size: int | None = None
    ) -> Targets:
        """A type's nodes with their in-edges from `sources`, of which a layer has rows."""
        edges = [each for each in self._store.all_edges() if ends_of(each.type)[0] in sources]
        return Targets(self._store, type, edges, batch_size or self._settings.batch_size)

    def _plan(self, layer: int, targets: Targets, files: Mapping[NodeKey, TableFile]) -> RowPlan:
        """Divide the memory; ConfigError: it is too little for this layer, or for the one after
        `layer`. The message names what is enough for all layers that are left."""
        given = self._settings.memory
        memory = int(DEFAULT_SHARE * available_memory()) if given is None else given
        try:
            return self._divided(targets, files, memory)
        except TooLittleMemory as error:
            widths, size = self._widths(layer), self._settings.batch_size
            least = max(error.least, self._least(widths, size))
            remedies = [f'memory="{least_text(least)}" or more']
            for fewer in halves(size):
                if fewer >= BATCH_LEAST and self._least(widths, fewer) <= memory:
                    remedies.append(f"batch_size={fewer}")
                    break
            said = "a quarter of the available memory, " if given is None else "memory="
            raise ConfigError(
                f"{said}{format_size(memory, least)} is less than inference needs for its "
                f"largest batch: give {', or '.join(remedies)}"
            ) from None

    def _divided(
        self, targets: Targets, files: Mapping[NodeKey, TableFile], memory: int
    ) -> RowPlan:
        return plan_rows(
            targets, {type: files[type] for type in targets.sources}, memory,
            self._settings.io_depth, degrees.NODE_BYTES if self._convs else 0,
            self._call.edge_bytes,
        )  # fmt: skip

    def _widths(self, layer: int) -> list[dict[NodeKey, TableFile]]:
        """The rows that a layer and those behind it read, by node type. Each layer is called for
        one node without edges; the list ends before the first whose input is not known so."""
        found = [self._inputs(layer)]
        for each in range(layer, len(self._layers) - 1):
            made = {}
            try:
                for type in found[-1]:
                    rows = self._call.of_one_node(each, type, found[-1])
                    if rows is not None:
                        dtype = self._settings.dtype or dtype_name(rows.dtype)
                        info = Done(dtype, tuple(rows.shape[1:])).info(
                            self._rows[type], type, self._outcome.name, ""
                        )
                        made[type] = table_file(self._outcome.base, info)
            except (*REFUSALS, ConfigError):  # the layer needs edges
                break
            found.append(made)
        return found

    def _least(self, widths: Sequence[dict[NodeKey, TableFile]], batch_size: int) -> int:
        """The memory that is enough for layers that read such rows."""
        least = 0
        for files in widths:
            for type in files:
                targets = self._targets(type, files, batch_size)
                if targets.count:
                    try:
                        self._divided(targets, files, 0)
                    except TooLittleMemory as error:
                        least = max(least, error.least)
        return least

    def _run_type(self, layer: int, targets: Targets, files: Mapping[NodeKey, TableFile]) -> None:
        """Compute what is left of one type in a layer."""
        used = {type: files[type] for type in targets.sources}
        plan = self._plan(layer, targets, files)
        reads = self._reads_for(max(file.row_bytes for file in used.values()))
        compute = self._call.of_layer(layer, targets.type, files)
        sink = _Sink(self, layer, targets)
        try:
            run_pass(targets, sink.first, used, plan, reads, self._thread, compute, sink.take)
            sink.finish()
        finally:
            sink.close()

    def _reads_for(self, row_bytes: int) -> RowReads:
        """The reads of all layers, made anew for longer rows: a thread that ends leaves memory."""
        if self._reads is not None and self._reads.block_bytes < block_bytes(row_bytes):
            self._close_reads()
        if self._reads is None:
            gap = checked_gap(None, self._store, SWEEP_BLOCK_BYTES)
            settings = self._settings
            with deferred_interrupts():
                self._reads = RowReads(settings.engine, settings.io_depth, row_bytes, gap)
        return self._reads

    def _close_reads(self) -> None:
        with deferred_interrupts():
            reads, self._reads = self._reads, None
            if reads is None:
                return
            try:
                for name, count in reads.stats().items():
                    self.stats[name] = self.stats.get(name, 0) + count
            finally:
                reads.close()

    def _inputs(self, layer: int) -> dict[NodeKey, TableFile]:
        """The rows that a layer reads, by node type."""
        if layer:
            return {
                type: table_file(self._outcome.base, self._info(layer - 1, type))
                for type in self._made_types(layer - 1)
            }
        found: dict[NodeKey, TableFile] = {}
        name = self._settings.features
        for nodes in self._store.all_nodes():
            if name in nodes:
                found[nodes.type] = nodes.table(name)
            elif nodes.num_nodes:
                whose = "" if nodes.type is None else f" of type {nodes.type!r}"
                raise ConfigError(
                    f"the nodes{whose} of {self._store.path} have no {name!r}"
                    f"{did_you_mean(name, nodes.names)}, which the first layer needs: "
                    "import the store with it, or give features="
                )
        return found

    def _is_whole(self) -> bool:
        """Whether the files are there that the record says are."""
        layers = self._record.layers
        needed = range(max(len(layers) - 2, 0), len(layers))
        if layers and set(layers[-1]) == set(self._rows):  # the layer before is not needed any more
            complete = all(done.finished for done in layers[-1].values())
            needed = needed[-1:] if complete else needed
        return all(
            (self._outcome.base / self._info(layer, type).file).is_file()
            for layer in needed
            for type in self._made_types(layer)
        )

    def _made_types(self, layer: int) -> list[NodeKey]:
        """The node types of which a layer has made rows, or begun to."""
        made = self._record.layers[layer]
        return [type for type, done in made.items() if done.dtype is not None]

    def _info(self, layer: int, type: NodeKey) -> ArrayInfo:
        """The array of a type's rows after a layer."""
        working = Path(self._outcome.working)
        if layer < len(self._layers) - 1:
            working /= f"layer-{layer + 1}"
        done = self._record.layers[layer][type]
        return done.info(self._rows[type], type, self._outcome.name, str(working))

    def warn_if_not_finite(self, layer: int, batch: TargetBatch, rows: torch.Tensor) -> None:
        """Warn at the first batch of which rows, as they are written, hold nan or infinity."""
        if self._warned or (finite := rows.isfinite()).all():
            return
        self._warned = True
        found = (~finite).flatten(1).any(dim=1).nonzero().view(-1)
        warnings.warn(
            f"layer {layer + 1} returned nan or infinity for {len(found):,} of the {len(rows):,} "
            f"nodes of a batch, the first time for node {batch.first + int(found[0])}, and so will "
            f"the layers behind it: look for nan in {self._settings.features!r} (gnndrive verify "
            "counts its rows) and in the weights, and for numbers too large for the dtype",
            RuntimeWarning,
            stacklevel=2,
        )

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress("inference", self._entries_done, self._entries)

    def advance(self, entries: int) -> None:
        """Count targets and in-edges that are done."""
        self._entries_done += entries
        self._tell()


class _Sink:
    """Takes the rows of one type in one layer, from the target `first` on: writes them past the
    page cache, as an array in the form of a store's, and records what is durable. After a kill the
    rows behind that come again."""

    def __init__(self, run: Run, layer: int, targets: Targets) -> None:
        self._run, self._layer, self._targets = run, layer, targets
        self._made = run._record.layers[layer]
        self._file: DirectWriter | None = None
        self._info: ArrayInfo
        known = self._made.get(targets.type)
        self.first = self._written = 0 if known is None else known.rows
        if self.first:
            self._open()
            run.advance(sum(
                each.entries for each in targets.batches() if each.last <= self.first
            ))  # fmt: skip

    def take(self, batch: TargetBatch, rows: torch.Tensor) -> None:
        """Write the rows of a batch, which are on the host."""
        if self._file is None:
            dtype = self._run._settings.dtype or dtype_name(rows.dtype)
            self._made[self._targets.type] = Done(dtype, tuple(rows.shape[1:]))
            self._open()
        assert self._file is not None
        info = self._info
        if rows.shape[1:] != info.shape[1:]:
            raise ConfigError(
                f"layer {self._layer + 1} returned rows of shape {list(rows.shape[1:])} after "
                f"{list(info.shape[1:])}: return rows of one shape"
            )
        rows = rows.to(torch_dtype(info.dtype))
        self._run.warn_if_not_finite(self._layer, batch, rows)
        if rows.numel():
            self._file.append(rows.contiguous().view(torch.uint8).numpy())
        self._written = batch.last
        if (batch.last - self._known.rows) * info.row_bytes >= SYNC_BYTES:
            self._keep()
        self._run.advance(batch.entries)

    def finish(self) -> None:
        """End the file after the last batch."""
        if self._file is None:
            self._made[self._targets.type] = Done(None, finished=True)
            return
        assert self._written == self._targets.count
        self._known.sha256 = self._file.finish()
        self._known.rows, self._known.finished = self._written, True
        self._run._record.save()

    def close(self) -> None:
        """Close the file. After an interruption, keep what was written, if the disk takes it."""
        if self._file is None:
            return
        try:
            if not self._known.finished and self._written > self._known.rows:
                with contextlib.suppress(StoreError):
                    self._keep()
        finally:
            self._file.close()

    def _keep(self) -> None:
        """Make what was written durable, and record it."""
        assert self._file is not None
        self._file.sync()
        self._known.rows = self._written
        self._run._record.save()

    @property
    def _known(self) -> Done:
        return self._made[self._targets.type]

    def _open(self) -> None:
        run, layers = self._run, len(self._run._layers)
        run.check_next(self._layer)
        self._info = info = run._info(self._layer, self._targets.type)
        path = run._outcome.base / info.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(path, error) from error
        written = DATA_OFFSET + self.first * info.row_bytes if self.first else 0
        checksum = run._outcome.in_store and self._layer == layers - 1
        self._file = DirectWriter(path, written, info.nbytes, checksum=checksum)
        if not self.first:
            self._file.append(npy_header(info))
