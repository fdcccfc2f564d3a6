"""The C core's functions, called with the GIL held and with the GIL released."""

import sys
import threading

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, holding_gil, lib, pointer


@pytest.fixture
def window():
    made = ffi.gc(lib.gd_window_new(10), lib.gd_window_free)
    rows = np.arange(3)
    assert lib.gd_window_add(made, 7, pointer(rows), len(rows)) == 0
    return made


def test_holding_gil_refuses_pointers_of_other_types(window):
    with pytest.raises(TypeError, match=r"argument 0 is .*, not a struct gd_window"):
        holding_gil.gd_window_count(ffi.new("int32_t *"))
    slots = np.zeros(2, np.int64)
    buffer = ffi.gc(lib.gd_buffer_new(10, 4), lib.gd_buffer_free)
    with pytest.raises(TypeError, match="not a int32_t"):
        holding_gil.gd_buffer_commit(buffer, pointer(slots), 2)


def test_holding_gil_keeps_the_gil(window):
    """A second thread that waits for the GIL does not get it during ten times as many calls as it
    needs to get it from `lib`, whose calls release the GIL."""
    asked, got = threading.Event(), []

    def want():
        asked.wait()
        got.append(True)

    def calls_until_it_runs(core, most):
        asked.clear()
        got.clear()
        thread = threading.Thread(target=want)
        thread.start()
        asked.set()
        calls = 0
        while calls < most and not got:
            core.gd_window_count(window)
            calls += 1
        ran = bool(got)
        thread.join()
        return calls if ran else None

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        needed = calls_until_it_runs(lib, 10**9)
        assert calls_until_it_runs(holding_gil, max(10 * needed, 100_000)) is None
    finally:
        sys.setswitchinterval(interval)
