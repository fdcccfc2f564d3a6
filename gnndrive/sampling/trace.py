"""`Trace`: the samples of a superbatch on disk, with the next use of each of their rows.

A superbatch is sampled before the first of its batches is extracted (Ginex §3.1), and its samples
wait in a file. `strategies/superbatches/feed.py` writes them in any order, makes a pass over them
from the last to the first with `add_next_uses`, and reads each in order. A record has the
sections that a pack's has (`store/packed/encoding.py`), but those of a plain sample as they are in
memory, so that they are read without a copy; then, on a page,

    code (uint16), the next use of each node, by type

It starts on a page, because it is written and read past the page cache: dirty pages count in a
control group. The file has no name, so that the kernel frees it whatever happens to the process,
and each record's blocks are given back when it was read, unless its batch comes again.

When not to use it: for what a user's sampler or transform returns, which may hold anything.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.ffi import check, lib, pointer
from gnndrive.common.io.direct_file import PAGE_BYTES, Bytes, unnamed_file, whole_pages
from gnndrive.common.io.write_errors import FULL
from gnndrive.common.records import (
    Codes,
    Int64Array,
    NextUses,
    NodeKey,
    Sample,
    Seeds,
    Subgraph,
)
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.packed.encoding import (
    OF_EDGES,
    OF_NODES,
    RecordedBatch,
    batch_of,
    fixed_sections,
    hop_counts_of,
    schema_of,
    section_name,
    sections_of,
)
from gnndrive.store.packed.sections import SECTION_ALIGN, Schema, Section, aligned, entries_of
from gnndrive.store.types import Types

_NONE = np.empty(0, np.int64)
CODE_BYTES = 2
METADATA = 5  # sections of what a sampler says of the seeds, at most


@dataclass(frozen=True, slots=True)
class RecordSize:
    """How large the records of a loader are.

    Attributes:
        form: see `Schema`.
        trees: whether each node has the number of its tree.
        seeds: of a batch, the most.
        seed_bytes: bytes that describe a seed, beside its node.
    """

    types: Types
    form: str
    trees: bool
    seeds: int
    seed_bytes: int

    def nbytes(self, size: Bounds) -> int:
        """The most bytes of a record of a sample of at most `size`."""
        nodes = sum(size.entries.values())
        counts = {"colptr": 1 + (nodes if size.expanded is None else size.expanded)}
        for fields, by_type in ((OF_NODES, size.entries), (OF_EDGES, size.edges)):
            for type, count in by_type.items():
                counts |= {section_name(each, type): count for each in fields}
        found = self.seeds * self.seed_bytes + METADATA * SECTION_ALIGN
        for section in _as_in_memory(self.form, fixed_sections(self.form, self.types)):
            what = section.name.partition("/")[0]
            if not what.startswith("orig_") and (self.trees or what != "batch"):
                found += aligned(section.itemsize * counts.get(section.name, 0), SECTION_ALIGN)
        return whole_pages(found) + whole_pages(CODE_BYTES * nodes)


def _as_in_memory(form: str, sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections of a record: those of plain samples have the dtypes that samples have."""
    if form != "sample":
        return tuple(sections)
    return tuple(replace(each, dtype=each.delivered) for each in sections)


@dataclass(slots=True)
class _Record:
    """Where a sample is, and what of it is in memory.

    Attributes:
        seeds: whole if the sample is, else without arrays.
        sample: whole, if the disk had no room for it; None: it is in the file.
        nodes: the numbers of its nodes, by type.
        numbered: see `Sample`.
        schema, row: of a record in the file: its sections, and its row of an index.
        near: see `NextUses`, by type, of those types whose next uses are known.
        codes: those that are not in the file, by type.
    """

    seeds: Seeds
    sample: Sample | Subgraph | None
    nodes: Mapping[NodeKey, int]
    numbered: bool = False
    schema: Schema | None = None
    row: Int64Array = field(default_factory=lambda: _NONE)
    near: dict[NodeKey, Int64Array] = field(default_factory=dict)
    codes: dict[NodeKey, Codes] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        """Where the record starts, in bytes."""
        return int(self.row[1])

    @property
    def sample_bytes(self) -> int:
        """Bytes of the sample; the codes come behind it."""
        return int(self.row[2])

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes, in pages."""
        return whole_pages(CODE_BYTES * sum(self.nodes.values()))

    def parts(self, codes: Codes) -> Iterator[tuple[NodeKey, Codes]]:
        """The codes of each type among those of all."""
        start = 0
        for type, count in self.nodes.items():
            yield type, codes[start : start + count]
            start += count


class Trace:
    """The samples of the batches of one superbatch; several threads may write at once.

    Attributes:
        nbytes: bytes of the records that were written.
    """

    def __init__(self, folder: Path, types: Types, empty: Allocate = np.empty) -> None:
        self._folder, self._types, self._empty = folder, types, empty
        self._records: dict[int, _Record] = {}
        self._schema: Schema | None = None
        self._lock, self.nbytes = threading.Lock(), 0
        try:
            self._file = unnamed_file(folder)
            self._close = weakref.finalize(self, self._file.close)
        except OSError as error:
            raise StoreError(
                f"no file for sampled batches can be made in {folder} ({error.strerror}): give "
                "another folder with folder="
            ) from error

    def write(self, seeds: Seeds, sample: Sample | Subgraph) -> bool:
        """Write the sample of a batch, and return True; if the disk has no room for it, keep it in
        memory, and return False. ConfigError: it cannot be recorded."""
        assert sample.rows is None
        assert sample.replayed is None
        if self._put_record(seeds, sample):
            return True
        self._records[seeds.index] = _Record(seeds, sample, self._counts(sample))
        return False

    def _counts(self, sample: Sample | Subgraph) -> Mapping[NodeKey, int]:
        return {type: len(_nodes_of(sample, type)) for type in self._types.nodes}

    def _put_record(self, seeds: Seeds, sample: Sample | Subgraph) -> bool:
        """Write a sample to the end of the file; return whether the disk has room for it."""
        batch = RecordedBatch(seeds, sample)
        schema = self._schema_of(batch)
        sections = list(sections_of(batch, schema).values())
        counts, hops = entries_of(sections), hop_counts_of(sample, schema)
        row = np.array([0, 0, schema.places(counts)[1], *counts, *hops], np.int64)
        left = replace(seeds, node=_NONE, input_id=_NONE, given=None)
        record = _Record(left, None, self._counts(sample), sample.numbered, schema, row)
        memory = _pages(self._empty, record.sample_bytes + record.code_bytes)
        schema.fill(memory, sections)
        memory[record.sample_bytes :] = 0  # the codes come later; their blocks are taken now
        with self._lock:
            row[1] = self.nbytes
            self.nbytes += len(memory)
        try:
            self._put(memory, record.offset)
        except OSError as error:
            if error.errno in FULL:
                return False
            raise self._failure(error) from error
        self._records[seeds.index] = record
        return True

    def _schema_of(self, batch: RecordedBatch) -> Schema:
        """Return the schema of a batch's record; records with equal schemas share one object."""
        kept, hops = self._schema, _hops_of(batch.sample)
        if kept is not None and isinstance(batch.sample, Sample) and kept.hops == hops:
            return kept  # only metadata differ, which plain samples do not have
        found = schema_of(batch, self._types, (), hops)
        found = replace(found, sections=_as_in_memory(found.form, found.sections))
        if kept != found:
            self._schema = kept = found
        return kept

    def add_next_uses(self, index: int, last: Mapping[NodeKey, Codes]) -> None:
        """Find when the rows of batch `index` are needed next, and make it their next use; called
        for the batches from the last to the first. `last` has the code of the next use of each row,
        by type, uint16 [nodes]; `GD_NO_CODE` at first."""
        record = self._records[index]
        codes = _pages(self._empty, record.code_bytes).view(np.uint16)
        codes[:] = 0
        nodes, code = self._read_nodes(record), index % lib.GD_NO_CODE
        for type, part in record.parts(codes):
            if (known := last.get(type)) is None:
                continue
            node = nodes[type].astype(np.int64, copy=False)
            near = record.near[type] = np.zeros(lib.GD_NEAR, np.int64)
            error = lib.gd_trace_codes(
                pointer(known), len(known), pointer(node), len(node), code, pointer(part),
                pointer(near),
            )  # fmt: skip
            check(error, "next uses")
        if record.sample is None:
            try:
                self._put(codes.view(np.uint8), record.offset + record.sample_bytes)
                return
            except OSError as error:
                if error.errno not in FULL:
                    raise self._failure(error) from error
        # A file system that writes no block in place is full, or the sample is in memory, too.
        record.codes = dict(record.parts(codes))

    def _read_nodes(self, record: _Record) -> Mapping[NodeKey, Any]:
        """The nodes of a record by type, in any dtype."""
        schema, sample = record.schema, record.sample
        if schema is None:
            assert sample is not None
            return {type: _nodes_of(sample, type) for type in record.nodes}
        counts = schema.counts(record.row).tolist()
        starts, end = schema.places(counts)
        for section, start in zip(schema.sections, starts, strict=True):
            if section.name.partition("/")[0] not in OF_NODES:  # those of nodes come first
                end = start
                break
        memory = _pages(self._empty, whole_pages(end))
        self._get(memory, record.offset)
        sections = schema.split(memory, counts)
        nodes = {type: sections[section_name("node", type)] for type in record.nodes}
        return {type: _NONE if node is None else node for type, node in nodes.items()}

    def take(self, index: int) -> tuple[Seeds, Sample | Subgraph, Mapping[NodeKey, NextUses]]:
        """Read the sample of batch `index`; once, unless it comes again, and then give its blocks
        back. The next uses of its nodes by type, as far as they are known."""
        record = self._records[index]
        if not (again := record.seeds.again):
            del self._records[index]
        if record.sample is not None:
            seeds, sample, codes = record.seeds, record.sample, record.codes
            if again:  # the user may change what a batch is made of
                seeds = replace(seeds, node=seeds.node.copy(), input_id=seeds.input_id.copy())
                sample = deepcopy(sample)
        else:
            memory = _pages(self._empty, record.sample_bytes + record.code_bytes)
            self._get(memory, record.offset)
            if not again:  # where the file system has no holes, closing gives the blocks back
                lib.gd_punch_hole(self._file.fd, record.offset, len(memory))
            batch = self._batch(index, record, memory)
            seeds, sample = batch.seeds, batch.sample
            read = memory[record.sample_bytes :].view(np.uint16)
            codes = record.codes or dict(record.parts(read))
        uses = {type: NextUses(codes[type], near) for type, near in record.near.items()}
        return seeds, sample, uses

    def _batch(self, index: int, record: _Record, memory: Bytes) -> RecordedBatch:
        schema, row = record.schema, record.row
        assert schema is not None
        sections = schema.split(memory, schema.counts(row).tolist())
        where = str(self._folder)
        found = batch_of(
            index, row, sections, schema, self._types, where, self._empty, trusted=True
        )
        node, input_id = found.seeds.node.copy(), found.seeds.input_id.copy()
        seeds = replace(record.seeds, node=node, input_id=input_id)
        return RecordedBatch(seeds, replace(found.sample, numbered=record.numbered))

    def close(self) -> None:
        """Free the file and everything in it; idempotent."""
        self._records.clear()
        self._close()

    def _put(self, memory: Bytes, offset: int) -> None:
        self._file.write(memory.data, offset)
        if not self._file.direct:
            self._file.drop(offset, len(memory))

    def _get(self, memory: Bytes, offset: int) -> None:
        try:
            got = self._file.read(memory.data, offset, len(memory))
        except OSError as error:
            raise ReadError(self._folder, offset, error.errno or 0) from error
        if got < len(memory):
            raise StoreError(
                f"a file of sampled batches in {self._folder} was cut short: check the disk"
            )

    def _failure(self, error: OSError) -> StoreError:
        return StoreError(
            f"writing sampled batches in {self._folder} failed ({error.strerror}): check the disk, "
            "or give another folder with folder="
        )


def _pages(empty: Allocate, nbytes: int) -> Bytes:
    """Memory of `nbytes` that starts on a page."""
    memory: Bytes = empty(nbytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + nbytes]


def _nodes_of(sample: Sample | Subgraph, type: NodeKey) -> Int64Array:
    return sample.node if isinstance(sample, Sample) else sample.node.get(type, _NONE)


def _hops_of(sample: Sample | Subgraph) -> int:
    """For how many hops a sample has counts."""
    counts = (sample if isinstance(sample, Sample) else sample.output).num_sampled_edges
    by_type = counts.values() if isinstance(counts, Mapping) else [counts]
    return max((len(each) for each in by_type if each is not None), default=0)
