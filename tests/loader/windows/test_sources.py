"""What a window has in memory, by brute force."""

import numpy as np
import pytest

from gnndrive import Store
from gnndrive.loader.megabatches import MegabatchSource
from tests.loader.windows.conftest import Make


@pytest.mark.parametrize("static", [0, 0.01])
def test_the_in_edges_of_a_windows_nodes(make: Make, store: Store, static: float) -> None:
    """A static node in one of the partitions counts once."""
    assembly = make(static=static)._assembly()
    assert assembly.megabatches is not None
    schedule = assembly.schedule(0)
    windows = assembly.megabatches.windows
    pointers = store.edges().index_pointers
    source = MegabatchSource(windows, pointers, lambda: schedule.windows(0))
    degrees = np.diff(pointers.astype(np.int64))
    count = 0
    for window in source.windows():
        nodes = np.unique(source.graph(window).store_ids)
        assert source.codes_of(window) == degrees[nodes].sum()
        count += 1
    assert count > 1
