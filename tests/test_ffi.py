"""The C core's functions, with the GIL and without."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from gnndrive._ffi import ffi, lib, pointer, quick


@pytest.fixture
def window():
    made = ffi.gc(lib.gd_window_new(10), lib.gd_window_free)
    rows = np.arange(3)
    assert lib.gd_window_add(made, 7, pointer(rows), len(rows)) == 0
    return made


def test_quick_functions_take_and_return_what_the_librarys_do(window):
    assert quick.gd_window_count(window) == lib.gd_window_count(window) == 1
    rows = np.arange(3)
    assert quick.gd_window_drop(window, 7, pointer(rows), len(rows)) == 0
    assert quick.gd_window_count(window) == 0
    buffer = ffi.gc(lib.gd_buffer_new(10, 4), lib.gd_buffer_free)
    alias, position = np.zeros(2, np.int32), ffi.new("int64_t *")
    assert quick.gd_buffer_settled(buffer, pointer(alias), 2, position) == 1
    assert position[0] == 2
    room = quick.gd_buffer_room(buffer)
    assert (ffi.typeof(room), room) == (ffi.typeof(lib.gd_buffer_room(buffer)), room)
    assert room.available == 4
    assert quick.gd_window_new(-1) == ffi.NULL


def test_quick_functions_keep_the_gil(window):
    """Another thread, which wants it all the time, does not get it."""
    go, ran = threading.Event(), []
    interval = sys.getswitchinterval()

    def wait() -> None:
        go.wait()
        ran.append(True)

    thread = threading.Thread(target=wait)
    sys.setswitchinterval(1e6)
    try:
        thread.start()
        go.set()
        for _ in range(10_000):
            quick.gd_window_count(window)
        assert not ran
        while not ran:
            lib.gd_window_count(window)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
