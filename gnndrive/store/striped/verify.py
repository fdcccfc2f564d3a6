"""Read all stripes of a store and its own rows, and compare their checksums."""

from __future__ import annotations

import os
from contextlib import closing

from gnndrive.common.errors import StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import TableFile
from gnndrive.store.layout.rows import stored_sum
from gnndrive.store.layout.table_parts import SUM_MODULUS, TableParts, gather
from gnndrive.store.reader import Store
from gnndrive.store.striped.format import MEND, STRIPES, StripedRows, StripesInfo, numbers
from gnndrive.store.striped.striped import stripes_of

_PART_BYTES = 32 << 20


def verify_stripes(
    path: str | os.PathLike[str], store: Store, progress: Progress | None = None
) -> StripesInfo:
    """Check that the stripes have the store's rows; arguments and errors as for `verify_pack`."""
    info, stripes = STRIPES.read(path, store), stripes_of(store)
    told = progress or (lambda *_: None)
    if stripes is None:
        raise StoreError(f"{path} is not in its place in {store.path}: {MEND}")
    for name, rows in stripes.tables.items():
        expected = _sums(store.table(name), rows, name, told)
        for disk, file in enumerate(rows.files):
            found = stored_sum(file.path, file.data_offset, file.row_count, file.row_bytes, MEND)
            checksum = f"sum64:{found:016x}"
            if found != expected[disk] or checksum != info.arrays[f"{disk}/{name}"].checksum:
                raise StoreError(
                    f"rows of {file.path} are not those of {store.table(name).path}: {MEND}"
                )
            told(f"{name} on disk {disk}", file.row_count, file.row_count)
    return info


def _sums(table: TableFile, rows: StripedRows, name: str, told: Progress) -> list[int]:
    """The checksum that each disk's rows have to have, from the store's."""
    sums = [0] * len(rows.files)
    with closing(TableParts(table, _PART_BYTES).parts(0, table.row_count)) as parts:
        for part in parts:
            last = part.first + part.count
            for disk, start, stop, at in rows.runs(part.first, last):
                sums[disk] += gather(part, table.row_bytes, numbers(start, stop), at)
            told(name, last, table.row_count)
    return [each % SUM_MODULUS for each in sums]
