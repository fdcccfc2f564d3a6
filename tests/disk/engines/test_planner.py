"""The read planner (native/plan.c) compared with brute force, and the table layout."""

import errno
import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Landing, TableFile
from gnndrive.disk.layouts.table import TableLayout


def plan(rows, slots=None, slots_at=1 << 20, **geometry):
    """Plan reads of rows; returns them, or NULL, and the error."""
    options = {
        "row_bytes": 100,
        "row_count": 1000,
        "sector": 512,
        "extent_bytes_max": 65536,
        "slot_stride": 1 << 30,
        "slots": ffi.cast("uint8_t *", slots_at),
    } | geometry
    ids = np.array(rows, np.int64)
    slots = np.arange(ids.size, dtype=np.int32) if slots is None else np.array(slots, np.int32)
    error = ffi.new("int *")
    reads = lib.gd_reads_plan(
        ffi.new("gd_geometry *", options), pointer(ids), pointer(slots), ids.size, error
    )
    return (ffi.gc(reads, lib.gd_reads_free) if reads else reads), error[0]


def extents_of(reads):
    """Return [(offset, length)], each extent's first request; the reads have ended afterwards."""
    out, found = ffi.new("gd_request *"), []
    while (extent := lib.gd_reads_take(reads)) >= 0:
        lib.gd_reads_request(reads, extent, ffi.NULL, out)
        found.append((out.offset, out.length))
        lib.gd_reads_complete(reads, extent, -errno.EBADF, ffi.NULL)
    lib.gd_reads_let_go(reads)
    return found


def spans(rows, data_offset, row_bytes, sector):
    """Yield (start, stop) of each row in sorted order, rounded out to sectors."""
    for row in sorted(rows):
        start = (data_offset + row * row_bytes) // sector * sector
        yield start, -(-(data_offset + (row + 1) * row_bytes) // sector) * sector


def joined(extents, extent_bytes_max, gap_bytes_max):
    """Join each (start, stop) to the one before if the gap and the limit allow it."""
    out = []
    for start, stop in extents:
        near = out and start - out[-1][1] <= gap_bytes_max
        if near and stop - out[-1][0] <= extent_bytes_max:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return out


def brute_force(rows, data_offset, row_bytes, sector, extent_bytes_max, gap_bytes_max):
    runs = joined(spans(rows, data_offset, row_bytes, sector), extent_bytes_max, 0)
    return [(a, b - a) for a, b in joined(runs, extent_bytes_max, gap_bytes_max)]


@settings(max_examples=60)
@given(st.data())
def test_extents_equal_brute_force(data):
    row_count = data.draw(st.sampled_from([1, 50, 5000, 1 << 22, 1 << 40]))
    base = data.draw(st.integers(0, row_count - 1))
    near = st.integers(base, min(row_count - 1, base + 200))
    rows = data.draw(st.lists(near | st.integers(0, row_count - 1), unique=True, max_size=80))
    geometry = {
        "data_offset": data.draw(st.sampled_from([0, 128, 4096, 5000])),
        "row_bytes": data.draw(st.integers(1, 5000)),
        "sector": data.draw(st.sampled_from([1, 512, 4096])),
        "extent_bytes_max": data.draw(st.sampled_from([512, 4096, 65536])),
        "gap_bytes_max": data.draw(st.sampled_from([0, 1, 512, 3000])),
    }
    expected = brute_force(rows, **geometry)
    reads, error = plan(rows, row_count=row_count, **geometry)
    assert error == 0
    assert lib.gd_reads_rows(reads) == len(rows)
    assert lib.gd_reads_bytes(reads) == sum(length for _, length in expected)
    assert lib.gd_reads_block_bytes(reads) == max([length for _, length in expected], default=0)
    found = extents_of(reads)
    assert found == expected
    for offset, length in found:
        assert offset % geometry["sector"] == length % geometry["sector"] == 0
    other, _ = plan(sorted(rows), row_count=row_count, **geometry)
    assert extents_of(other) == expected


def test_runs_are_joined_up_to_the_largest_gap_and_extent():
    for gap, extent, expected in (
        (1024, 2560, [(0, 2560)]),
        (1023, 2560, [(0, 512), (1536, 1024)]),
        (1024, 2559, [(0, 512), (1536, 1024)]),
    ):
        options = {"row_bytes": 512, "gap_bytes_max": gap, "extent_bytes_max": extent}
        assert extents_of(plan([0, 3, 4], **options)[0]) == expected


def test_separate_rows_are_read_one_by_one_in_the_callers_order():
    options = {"row_bytes": 512, "separate": 1, "gap_bytes_max": 4096}
    assert extents_of(plan([5, 3, 3, 4], **options)[0]) == [
        (2560, 512), (1536, 512), (1536, 512), (2048, 512),
    ]  # fmt: skip
    assert extents_of(plan([1, 0], **options | {"row_bytes": 100})[0]) == [(0, 512), (0, 512)]
    for rows, code in (([1000], errno.ERANGE), ([-1], errno.ERANGE)):
        assert plan(rows, **options) == (ffi.NULL, -code)
    assert plan([1], [-1], **options) == (ffi.NULL, -errno.EINVAL)


def test_only_separate_rows_may_be_read_without_memory_to_land_in():
    assert plan([1], slots_at=0) == (ffi.NULL, -errno.EINVAL)
    reads, error = plan([1], slots_at=0, separate=1, land_direct=1, row_bytes=512)
    assert error == 0
    assert lib.gd_reads_block_bytes(reads) == 512  # through staging


WRITE = {"write": 1, "land_direct": 1, "row_bytes": 1024, "extent_bytes_max": 1024}


@pytest.mark.parametrize(
    ("rows", "geometry", "error"),
    [
        ([1000], {}, errno.ERANGE),
        ([-1], {}, errno.ERANGE),
        ([5, 3, 5], {}, errno.EINVAL),
        ([3, 5, 5], {}, errno.EINVAL),
        ([1], {"sector": 500}, errno.EINVAL),
        ([1], {"sector": 0}, errno.EINVAL),
        ([1], {"row_bytes": 0}, errno.EINVAL),
        ([1], {"row_bytes": 2**40}, errno.EINVAL),
        ([1], {"row_count": 2**62, "row_bytes": 8}, errno.EINVAL),
        ([1], {"extent_bytes_max": 0}, errno.EINVAL),
        ([1], {"slot_stride": 99}, errno.EINVAL),
        ([1], {"data_offset": -1}, errno.EINVAL),
        ([5, 3, 5], WRITE, errno.EINVAL),
        ([1], WRITE | {"land_direct": 0}, errno.EINVAL),
        ([1], WRITE | {"repeats": 1}, errno.EINVAL),
        ([1], WRITE | {"extent_bytes_max": 1025}, errno.EINVAL),
        ([1], WRITE | {"slots_at": 256}, errno.EINVAL),
        ([1], WRITE | {"data_offset": 256}, errno.EINVAL),
        ([1], WRITE | {"slot_stride": 1025}, errno.EINVAL),
        ([1], WRITE | {"row_bytes": 1000, "extent_bytes_max": 1000}, errno.EINVAL),
    ],
)
def test_bad_rows_and_geometries_are_refused(rows, geometry, error):
    assert plan(rows, **geometry) == (ffi.NULL, -error)
    assert plan([1, 2], [0, -1]) == (ffi.NULL, -errno.EINVAL)


def test_a_file_system_without_direct_io_is_read_buffered_with_a_warning(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(1000))
    file = TableFile(str(path), 0, 10, 100, "uint8", (100,))
    real_open = os.open

    def refuse(name, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(name, flags, *rest)

    monkeypatch.setattr("gnndrive.disk.layouts._rows_file.os.open", refuse)
    with pytest.warns(RuntimeWarning, match="page cache"):
        table = TableLayout(file)
    assert not table.direct
    with pytest.raises(ValueError, match=r"must be \[n\] both"):
        table.locate(np.array([3]), np.arange(2, dtype=np.int32), Landing(4096, 100, True))
    table.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableLayout(file, direct=False).close()
