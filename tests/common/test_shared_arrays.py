"""Arrays in shared memory: where they lie, and that a receiver finds them there."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.shared_arrays import ALIGNED, SharedArray, SharedArrays
from gnndrive.common.shared_memory import SharedMemory


def received(arrays: SharedArrays, described: SharedArray) -> np.ndarray:
    """An array as a receiver has it."""
    memory = arrays.memories[described.memory]
    attached = SharedMemory.attach(os.dup(memory.fd), memory.nbytes).array
    dtype = np.dtype(described.dtype)
    end = described.offset + described.count * dtype.itemsize
    return attached[described.offset : end].view(dtype)


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["u1", "i2", "u4", "i8"]), st.integers(0, 90))),
        max_size=4,
    ),
    st.integers(-70, 70),
)
def test_each_array_is_where_its_description_says(groups, error):
    """Also if the sizes that were reserved are wrong."""
    arrays, made = SharedArrays("test"), []
    for group in groups:
        sizes = [np.dtype(dtype).itemsize * count for dtype, count in group]
        arrays.reserve([max(sum(sizes) + error, 0)] if error else sizes)
        for dtype, count in group:
            array = arrays.empty((count,), dtype)
            assert not array.any()
            array[:] = len(made) + 1
            made.append((arrays.describe("a", array), array))
    if not error:
        assert len(arrays.memories) <= max(len(groups), 1)
    for described, array in made:
        assert described.offset % ALIGNED == 0
        if described.count:
            assert np.array_equal(received(arrays, described), array)
    arrays.close()


def test_an_array_of_another_memory_is_refused():
    arrays = SharedArrays("test")
    arrays.allocate(100)
    with pytest.raises(ValueError, match="x is not in memory that was allocated here"):
        arrays.describe("x", np.zeros(100, np.uint8))
    arrays.close()


def test_empty_arrays_take_no_memory_of_their_own():
    arrays = SharedArrays("test")
    arrays.reserve([10])
    arrays.reserve([0, 0])
    assert len(arrays.memories) == 1
    assert len(arrays.empty(0, np.int64)) == 0
    arrays.close()


def test_more_than_is_available_is_refused():
    arrays = SharedArrays("test")
    with pytest.raises(MemoryError, match="memory="):
        arrays.reserve([1 << 60])
    assert arrays.memories == []
