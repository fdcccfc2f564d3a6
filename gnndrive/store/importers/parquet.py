"""Which files are Parquet, and which part of one cannot be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

PARQUET = (".parquet", ".pq")


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name has the ending of a Parquet file."""
    return Path(path).suffix.lower() in PARQUET


def bad_row_group(files: Sequence[Path]) -> str:
    """A text that names the first row group that cannot be read in Parquet files; "" if all can."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in filter(is_parquet, files):
        try:
            groups = pq.ParquetFile(file)
        except (OSError, pa.ArrowException):
            return f"{file}: "
        for group in range(groups.num_row_groups):
            try:
                groups.read_row_group(group)
            except (OSError, pa.ArrowException):
                return f"{file}, row group {group} of {groups.num_row_groups}: "
    return ""
