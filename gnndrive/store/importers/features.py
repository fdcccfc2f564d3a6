"""Feature files for importers: .npy, .npz dense or SciPy CSR, given out as dense chunks.

Nothing large is held: .npy is mapped, a dense .npz member is read as a stream, CSR is densified
chunk by chunk (its non-zeros are in memory). Nothing is unpickled.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy_format
import numpy.typing as npt

from gnndrive.errors import StoreError
from gnndrive.store.format import CHUNK_BYTES

_BAD_FILE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,  # zipfile's, for a compression or encryption that it lacks
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class Features:
    """Rows of features.

    Attributes:
        shape: rows first.
        dtype: of the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """The rows in order, at most `rows` at a time.

        Raises:
            StoreError: the file is damaged.
        """
        raise NotImplementedError


def rows_per_chunk(shape: tuple[int, ...], itemsize: int) -> int:
    """How many rows make a chunk of about 64 MiB."""
    row_bytes = itemsize
    for size in shape[1:]:
        row_bytes *= size
    return max(1, CHUNK_BYTES // max(1, row_bytes))


def open_features(path: Path) -> Features:
    """Features from a file.

    Args:
        path: .npy, or .npz with one array, or as `scipy.sparse.save_npz` writes a CSR matrix.

    Raises:
        StoreError: it is none of these; the message names the file.
    """
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            if "format.npy" in names:
                return _Csr(path)
            if len(names) != 1:
                raise ValueError(f"it holds {len(names)} arrays and not one")
            return _DenseNpz(path, names[0])
        return _Npy(path)
    except _BAD_FILE as error:
        raise _bad(path, error) from None


def _bad(path: Path, error: BaseException) -> StoreError:
    return StoreError(
        f"{path} cannot be read as features ({error}): save a numeric array with numpy.save, or a "
        "CSR matrix "
        f"with scipy.sparse.save_npz"
    )


def _check_rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) == 0 or dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype} of shape {list(shape)}, which are no rows of numbers")


class _Npy(Features):
    def __init__(self, path: Path) -> None:
        self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(self._array, np.ndarray):
            raise ValueError("it is not one .npy array; .npz files end with .npz")
        self.shape, self.dtype = self._array.shape, self._array.dtype
        _check_rows(self.shape, self.dtype)

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, self.shape[0], rows):
            yield self._array[start : start + rows]


class _DenseNpz(Features):
    def __init__(self, path: Path, member: str) -> None:
        self._path, self._member = path, member
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            self.shape, self.dtype = self._header(stream)

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        version = npy_format.read_magic(stream)
        old = version == (1, 0)
        read = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        _check_rows(shape, dtype)
        if fortran and len(shape) > 1:
            raise ValueError("its array is in Fortran order; save numpy.ascontiguousarray of it")
        return shape, dtype

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as stream:
                self._header(stream)
                for start in range(0, self.shape[0], rows):
                    count = min(rows, self.shape[0] - start)
                    content = stream.read(count * row_bytes)
                    yield np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
        except _BAD_FILE as error:
            raise _bad(self._path, error) from None


class _Csr(Features):
    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as archive:
            kind = np.asarray(archive["format"]).item()
            if (kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind) != "csr":
                raise ValueError(f"it is a sparse matrix of format {kind!r}; save matrix.tocsr()")
            shape = tuple(int(size) for size in archive["shape"])
            self._indptr = archive["indptr"].astype(np.int64)
            self._indices, self._data = archive["indices"], archive["data"]
        self.shape, self.dtype = shape, self._data.dtype
        _check_rows(self.shape, self.dtype)
        self._check()

    def _check(self) -> None:
        indptr, indices = self._indptr, self._indices
        good = (
            len(self.shape) == 2
            and indptr.shape == (self.shape[0] + 1,)
            and indices.ndim == 1
            and indices.dtype.kind in "iu"
            and self._data.shape == indices.shape
            and indptr[0] == 0
            and indptr[-1] == len(indices)
            and bool((indptr[1:] >= indptr[:-1]).all())
            and (not len(indices) or (indices.min() >= 0 and indices.max() < self.shape[1]))
        )
        if not good:
            raise ValueError("its CSR arrays contradict each other")

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, self.shape[0], rows):
            pointers = self._indptr[start : start + rows + 1]
            count = len(pointers) - 1
            row = np.repeat(np.arange(count), np.diff(pointers))
            entries = slice(int(pointers[0]), int(pointers[-1]))
            dense = np.zeros((count, self.shape[1]), self.dtype)
            # add.at and not assignment: entries that occur twice are summed, as SciPy does.
            np.add.at(dense, (row, self._indices[entries]), self._data[entries])
            yield dense
