"""The labelled edges of a part on disk: `edges.npy` [n, 2] and `labels.npy` [n], row after row.

When not to use it: for arrays of a store, which have checksums (`StoreWriter`). These are checked
when a loader gets them.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch

from gnndrive.common.errors import StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.files import open_plain

EDGES, LABELS = "edges.npy", "labels.npy"
_HEADER_BYTES = 128


class LabelWriter:
    """Writes the labelled edges of a part; use it as a context manager.

    Args:
        folder: where to write, made if it is not there.
        whole: whether labels are whole numbers, int64; else they are float32, as in PyG.

    Attributes:
        count: edges written so far.

    Raises:
        StoreError: the disk is full, or writing failed.
    """

    def __init__(self, folder: Path, whole: bool) -> None:
        self.count, self._folder = 0, folder
        self._dtypes = {EDGES: np.dtype("<i8"), LABELS: np.dtype("<i8" if whole else "<f4")}
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> LabelWriter:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in self._dtypes:
                self._files[name] = open(self._folder / name, "xb")
                self._files[name].write(bytes(_HEADER_BYTES))
        except OSError as error:
            raise self._failure(error) from error
        return self

    def write(self, source: Int64Array, target: Int64Array, labels: Any) -> None:
        """Write edges.

        Args:
            source, target: their ends, int64 [n].
            labels: their labels [n], or one for all.
        """
        labels = np.broadcast_to(labels, source.shape).astype(self._dtypes[LABELS])
        try:
            self._files[EDGES].write(np.stack([source, target], 1).astype("<i8").data)
            self._files[LABELS].write(labels.data)
        except OSError as error:
            raise self._failure(error) from error
        self.count += len(source)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for name, file in self._files.items():
                with file:
                    if kind is None:
                        shape = (self.count, 2) if name == EDGES else (self.count,)
                        file.seek(0)
                        file.write(_header(self._dtypes[name], shape))
                        file.flush()
                        os.fsync(file.fileno())
        except OSError as failure:
            raise self._failure(failure) from failure

    def _failure(self, error: OSError) -> StoreError:
        return StoreError(
            f"writing {self._folder} failed ({error.strerror or error}): check the disk, and that "
            "it has room"
        )


def read_labels(root: Path, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Map the labelled edges of a part.

    Args:
        root: the split.
        folder: where they lie, relative to `root`.

    Returns:
        (edge_label_index int64 [2, n], edge_label [n]).

    Raises:
        StoreError: a file is missing or damaged.
    """
    found = []
    for name in (EDGES, LABELS):
        try:
            with os.fdopen(open_plain(root, str(folder / name)), "rb") as file:
                tensor = torch.from_numpy(_mapped(file))
        except (OSError, StoreError, ValueError, TypeError, EOFError, OverflowError) as error:
            raise StoreError(
                f"{root / folder / name} cannot be read ({error}): split the links again, with "
                'if_exists="replace"'
            ) from None
        found.append(tensor)
    edges, labels = found
    if edges.dtype != torch.int64 or edges.shape != (len(labels), 2) or labels.dim() != 1:
        raise StoreError(
            f"{root / folder} does not hold labelled edges: split the links again, with "
            'if_exists="replace"'
        )
    return edges.t(), labels


def _mapped(file: BinaryIO) -> Any:
    """Map the array of an open .npy file.

    Raises:
        OSError, ValueError, TypeError, EOFError, OverflowError: it is damaged.
    """
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran or dtype.hasobject:
        raise ValueError("no array of rows")
    # "c": torch wants to be able to write; that changes this process's memory alone.
    return np.memmap(file, dtype, "c", file.tell(), shape)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A header in .npy format 1.0 of `_HEADER_BYTES`."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    body = text.encode("ascii").ljust(_HEADER_BYTES - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little") + body
