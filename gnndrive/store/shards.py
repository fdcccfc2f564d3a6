"""Shards: stores that have a part of the rows each, for hosts whose disks do not hold all.

A shard has every N-th stretch of the rows of each feature table, in order, and all else as the
store has it: graph, labels, splits. Its store.json is that of the store, and says beside it which
part it is, so a shard and its store have the same identity. The ranks that open the shards exchange
rows (`gnndrive.exchange`); a program with one of them has only what is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import fsync_folder
from gnndrive.common.owners import Owners
from gnndrive.common.progress import Progress
from gnndrive.store.derived_writer import DerivedWriter
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.format import ArrayInfo, Part, Shard, StoreInfo, torch_dtype
from gnndrive.store.if_exists import settle
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.store.parsing import SHARDS_MAX
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.row_classes import copy_classes

_CHUNK_BYTES = 16 << 20


def write_shards(
    store: Store, out: Path, hosts: int, host: int | None = None, progress: Progress | None = None
) -> list[Store]:
    """Divide a store among hosts: write OUT/part-0.gnn, OUT/part-1.gnn, …, one after the other.

    A part that is there already stays, so a call that was interrupted goes on. Files that are the
    same in all parts are hard links if the file system has them. Attributes that `gnndrive.infer`
    added, packs and partitions are left out.

    Args:
        out: a folder, made if it is not there.
        hosts: the number of parts.
        host: the number of the only part to write, from 0; None: all.
        progress: called as progress(part and array, bytes done, bytes in all).

    Returns:
        The open parts.

    Raises:
        ConfigError: `hosts` or `host` cannot be, the store is a shard or has no features, or
            something else is in the place of a part.
        StoreError: the disk is full, or writing failed.
        ReadError: the disk failed.
    """
    store.check_whole("parts are made of the whole store: give that")
    if not 2 <= hosts <= SHARDS_MAX:
        raise ConfigError(f"hosts={hosts}: give a number of hosts from 2 to {SHARDS_MAX:,}")
    if host is not None and not 0 <= host < hosts:
        raise ConfigError(f"host={host}: give a number from 0 to {hosts - 1}")
    own = store.info.own
    tables = [each for each in feature_tables(store) if each.name in own.arrays]
    if not tables:
        raise ConfigError(f"{store.path} has no features to divide: copy it to each host instead")
    try:
        out.mkdir(exist_ok=True)
        fsync_folder(Path(os.path.abspath(out)).parent)
    except OSError as error:
        raise ConfigError(
            f"the folder {out} cannot be made ({error.strerror}): choose another path"
        ) from None
    parts = {
        each.name: Part(Owners.of(each.rows, each.file.row_bytes, hosts).shift, "")
        for each in tables
    }
    return [
        _settle(store, out / f"part-{index}.gnn", Shard(index, hosts, parts), progress)
        for index in (range(hosts) if host is None else [host])
    ]


def _settle(store: Store, path: Path, shard: Shard, progress: Progress | None) -> Store:
    """Write a shard, or open the one that is there."""

    def write(overwrite: bool) -> Store:
        return _write(store, path, shard, progress)

    def check(found: Store) -> None:
        there = found.info.shard
        same = there and (there.index, there.shards) == (shard.index, shard.shards)
        if not same or found.identity != store.identity:
            raise ConfigError(
                f"{found.path} is not part {shard.index} of {shard.shards} of {store.path}: remove "
                "it, or choose another folder"
            )

    return settle(path, "open", write, check)


def _write(store: Store, path: Path, shard: Shard, progress: Progress | None) -> Store:
    with _ShardWriter(store, path, shard) as writer:
        writer.reserve_all()
        for name in store.info.own.arrays:
            if name in shard.parts:
                writer.write_part(name, progress)
            else:
                writer.take(store, name)
    made = open_store(path)
    copy_classes(store, made)
    return made


class _ShardWriter(DerivedWriter):
    """Writes a shard; the checksums in `shard.parts` are not known before."""

    def __init__(self, store: Store, path: Path, shard: Shard) -> None:
        types = store.info.types
        nodes: Any = {type: each.num_nodes for type, each in types.nodes.items()}
        edges: Any = dict(types.edges)
        if not types.hetero:
            nodes, edges = nodes[None], edges[None]
        super().__init__(path, nodes, edges)
        self._store, self._shard = store, shard

    def reserve_all(self) -> None:
        """Check that the disk has room for the shard; see `StoreWriter.reserve`."""
        links = os.stat(self._store.path).st_dev == os.stat(self.folder).st_dev
        arrays = self._store.info.own.arrays.values()
        written = (each for each in arrays if not links or each.name in self._shard.parts)
        self.reserve(sum(self._shard.stored(each).nbytes for each in written))

    def write_part(self, name: str, progress: Progress | None) -> None:
        """Write the shard's rows of an array."""
        whole, file = self._store.info.arrays[name], self._store.table(name)
        info, owners = self._shard.stored(whole), self._shard.owners(whole)
        count, dtype = info.shape[0], torch_dtype(info.dtype)
        step = max(_CHUNK_BYTES // info.row_bytes, 1)
        mapped, writer = self._store.tensor(name), self._begin(info, self.folder)
        writer.finite_rows = None  # the import has said what it found
        for start in range(0, count, step):
            rows = owners.rows_of(self._shard.index, np.arange(start, min(start + step, count)))
            chunk = torch.empty((len(rows), *info.shape[1:]), dtype=dtype)
            writer.write(pick_rows(file, mapped, rows, chunk))
            if progress is not None:
                done = writer.rows_written * info.row_bytes
                progress(f"{self.path.name} {name}", done, count * info.row_bytes)

    def _info(self, arrays: Mapping[str, ArrayInfo]) -> StoreInfo:
        parts = {
            name: replace(part, sha256=arrays[name].sha256)
            for name, part in self._shard.parts.items()
        }
        return replace(self._store.info.own, shard=replace(self._shard, parts=parts))
