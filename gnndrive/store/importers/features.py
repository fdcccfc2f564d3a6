"""Read feature files in dense chunks: .npy, .npz (dense, or a SciPy CSR matrix) and .pt.

.npy and .pt are mapped, an array in .npz is read as a stream, and a CSR matrix is made dense chunk
by chunk, with its non-zeros in memory. No pickle is loaded.
Rows may be changed on the way: other shapes, labels as a store has them.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy_format
import numpy.typing as npt
import torch

from gnndrive.common.errors import StoreError
from gnndrive.store.convert import Rows
from gnndrive.store.format import CHUNK_BYTES, dtype_name
from gnndrive.store.importers.tensor_file import REPEATS, load, repeats

BAD_FILE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,  # zipfile's, for a compression or encryption that it does not know
    SyntaxError,
    struct.error,
    tokenize.TokenError,  # numpy's, for a damaged header
    zipfile.BadZipFile,
    zlib.error,
)


class Features:
    """Rows of any array of nodes or edges; `dtype` is that in the file, uint16 for bfloat16, which
    numpy does not have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stored(self) -> str:
        """The store's name of the dtype; ConfigError: a store cannot hold it."""
        return dtype_name(self.dtype)

    def chunks(self, rows: int) -> Iterator[Rows]:
        """Read the rows in order, at most `rows` at a time."""
        raise NotImplementedError

    def all_rows(self) -> npt.NDArray[Any]:
        """Read all rows into memory, for small arrays; bfloat16 becomes float32."""
        step = rows_per_chunk(self.shape, self.dtype.itemsize)
        parts = [as_numpy(chunk) for chunk in self.chunks(step)]
        if not parts:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return np.concatenate(parts)


def as_numpy(chunk: Rows) -> npt.NDArray[Any]:
    """A chunk as a numpy array; bfloat16 becomes float32."""
    if isinstance(chunk, torch.Tensor):
        values: npt.NDArray[Any] = chunk.float().numpy()
        return values
    return chunk


def rows_per_chunk(shape: tuple[int, ...], itemsize: int) -> int:
    """Number of rows in a chunk of about 64 MiB."""
    return max(1, CHUNK_BYTES // max(1, itemsize * math.prod(shape[1:])))


def open_features(path: Path) -> Features:
    """Open a file of features: .npy, .npz with one array, or a CSR matrix that
    `scipy.sparse.save_npz` wrote."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            if "format.npy" in names:
                return _Csr(path)
            if len(names) != 1:
                raise ValueError(f"it holds {len(names)} arrays and not one")
            return _DenseNpz(path, names[0])
        array = map_npy(path)
        _check_rows(array.shape, array.dtype)
        return Array(array)
    except BAD_FILE as error:
        raise _bad(path, error) from None


def open_tensor(path: Path) -> Features:
    """Open a file of one dense tensor that `torch.save` wrote; the tensor is mapped."""
    try:
        return TensorRows(load(path))
    except (ValueError, TypeError, RuntimeError) as error:
        raise StoreError(
            f"{path} cannot be read as a tensor ({error}): save one tensor with torch.save, or the "
            "array with numpy.save and say format: numpy"
        ) from None


def members(path: Path) -> list[str]:
    """Names of the arrays in an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except BAD_FILE as error:
        raise _bad(path, error) from None


def open_member(path: Path, member: str) -> Features:
    """Open an array of an .npz file, which is read as a stream."""
    try:
        return _DenseNpz(path, f"{member}.npy")
    except BAD_FILE as error:
        raise _bad(path, error, member) from None


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy array: shape, whether it is in Fortran order, and dtype;
    ValueError: it does not hold rows of numbers, for example pickled objects."""
    version = npy_format.read_magic(stream)
    old = version == (1, 0)
    read = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    _check_rows(shape, dtype)
    return shape, fortran, dtype


def _bad(path: Path, error: BaseException, member: str = "") -> StoreError:
    if isinstance(error, FileNotFoundError):
        return StoreError(f"{path} is missing: give a file that is there")
    if member:
        return StoreError(
            f"{path} cannot be read ({member}: {error}): save numeric arrays with numpy.savez, or "
            "fetch the dataset again"
        )
    return StoreError(
        f"{path} cannot be read as features ({error}): save a numeric array with numpy.save, or a "
        "CSR matrix with scipy.sparse.save_npz"
    )


def _check_rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) == 0 or dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype} of shape {list(shape)}, which are not rows of numbers")


class Array(Features):
    """Rows of an array, mapped or in memory."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """See `Features.chunks`."""
        for start in range(0, self.shape[0], rows):
            yield self._array[start : start + rows]


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Map the array of an .npy file; if that cannot be, the error is one of `BAD_FILE`."""
    with path.open("rb") as file:
        start = file.read(len(npy_format.MAGIC_PREFIX))
    # Of another kind of file numpy's own error says to allow pickles, which does not help.
    if start.startswith(b"PK"):
        raise ValueError("it is not one .npy array; .npz files end with .npz")
    if start != npy_format.MAGIC_PREFIX:
        raise ValueError("it is not an .npy file")
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


class _DenseNpz(Features):
    def __init__(self, path: Path, member: str) -> None:
        self._path, self._member = path, member
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            self.shape, self.dtype = self._header(stream)

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        shape, fortran, dtype = read_header(stream)
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
        except BAD_FILE as error:
            raise _bad(self._path, error) from None


class TensorRows(Features):
    """Rows of a tensor, mapped or in memory; ValueError: `found` is no dense tensor of rows."""

    def __init__(self, found: Any) -> None:
        if not isinstance(found, torch.Tensor) or found.layout != torch.strided:
            raise ValueError(f"it holds a {type(found).__name__} that is not one dense tensor")
        if not found.dim() or found.is_complex() or found.is_quantized:
            raise ValueError(
                f"it holds {found.dtype} of shape {list(found.shape)}, which are not rows of "
                "numbers"
            )
        if repeats(found):
            raise ValueError(f"it holds {list(found.shape)} with {REPEATS}")
        self._tensor = found.detach()
        self.shape = tuple(found.shape)
        if found.dtype == torch.bfloat16:
            self.dtype = np.dtype(np.uint16)
        else:
            self.dtype = self._tensor[:0].numpy().dtype

    @property
    def stored(self) -> str:
        """See `Features.stored`."""
        return dtype_name(self._tensor.dtype)

    def chunks(self, rows: int) -> Iterator[Rows]:
        """See `Features.chunks`."""
        for start in range(0, self.shape[0], rows):
            chunk = self._tensor[start : start + rows]
            yield chunk if chunk.dtype == torch.bfloat16 else chunk.numpy()


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
            # add.at, not assignment, because SciPy sums entries that occur several times.
            np.add.at(dense, (row, self._indices[entries]), self._data[entries])
            yield dense


class ChangedRows(Features):
    """Rows that `change` changes, chunk by chunk, into rows of this shape and dtype (None: as
    before)."""

    def __init__(
        self,
        rows: Features,
        change: Callable[[Any], Rows],
        shape: tuple[int, ...],
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self._rows, self._change, self.shape = rows, change, shape
        self.dtype = rows.dtype if dtype is None else np.dtype(dtype)
        self._stored = rows.stored if dtype is None else dtype_name(self.dtype)

    @property
    def stored(self) -> str:
        """See `Features.stored`."""
        return self._stored

    def chunks(self, rows: int) -> Iterator[Rows]:
        """See `Features.chunks`; a chunk is longer than `rows` if `change` returns more rows."""
        return map(self._change, self._rows.chunks(rows))


def flat(rows: Features) -> Features:
    """Make one column [n, 1] an array [n]; leave other shapes as they are."""
    if len(rows.shape) == 2 and rows.shape[1] == 1:
        return ChangedRows(rows, lambda chunk: chunk.reshape(-1), rows.shape[:1])
    return rows


def two_dimensional(rows: Features) -> Features:
    """Make an array [n] one column [n, 1]; leave other shapes as they are."""
    if len(rows.shape) == 1:
        return ChangedRows(rows, lambda chunk: chunk.reshape(-1, 1), (*rows.shape, 1))
    return rows


def twice(rows: Features) -> Features:
    """Repeat each row once, for edges that are each followed by their reverse."""
    shape = (2 * rows.shape[0], *rows.shape[1:])
    return ChangedRows(rows, lambda chunk: np.repeat(chunk, 2, axis=0), shape)


def as_labels(rows: Features) -> Features:
    """Labels as a store has them.

    Whole numbers become int64, with -1 for a missing label, other numbers float32, with nan for a
    missing label; one column [n, 1] becomes [n]. Floats are read twice, to find out whether all of
    them are whole. StoreError, from `chunks`: a label does not fit.
    """
    floats = rows.dtype.kind == "f" or rows.stored == "bfloat16"
    if floats and not all(map(all_whole, rows.chunks(rows_per_chunk(rows.shape, 8)))):
        return flat(ChangedRows(rows, _single, rows.shape, "float32"))
    return flat(ChangedRows(rows, _without_nan, rows.shape, "int64"))


def all_whole(chunk: Rows) -> bool:
    """Whether all numbers of a chunk are whole, but for nan."""
    values = as_numpy(chunk)
    values = values[~np.isnan(values)]
    # From 2**53 on, float64 does not hold every whole number, so these are not ids of classes.
    return bool((np.isfinite(values) & (values == np.floor(values))).all()) and bool(
        (np.abs(values) < 2**53).all()
    )


def _single(chunk: Rows) -> Rows:
    values = as_numpy(chunk)
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    _refuse_labels(values, np.isinf(stored) & np.isfinite(values), "float32")
    return stored


def _without_nan(chunk: Rows) -> Rows:
    values = as_numpy(chunk)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    _refuse_labels(values, values > np.iinfo(np.int64).max, "int64")
    return values.astype(np.int64)


def _refuse_labels(values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], dtype: str) -> None:
    if wrong.any():
        raise StoreError(
            f"there is a label {values[wrong][0]}, which {dtype} does not hold: correct it, or "
            "number the classes from 0"
        )
