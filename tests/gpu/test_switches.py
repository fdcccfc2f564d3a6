"""The switches of the CUDA device on a GPU: each way moves the same rows with any of them, and CuPy
does without what it says is deprecated."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.cuda import TorchDriver
from tests.buffer.devices.moving import ROW_BYTES, shuffled, some_rows
from tests.buffer.devices.test_drivers import pinned_moves, staged

pytestmark = pytest.mark.gpu

PLACES, SLOTS = 700, 500
SWITCHES = [
    MoveOptions(), MoveOptions(blocks=1), MoveOptions(blocks=128), MoveOptions(gather_stream=True),
]  # fmt: skip


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_any_switch_moves_the_same_rows(way: str, options: MoveOptions) -> None:
    driver = TorchDriver(torch.device("cuda"), way, options)
    assert driver.way == way
    for row_bytes in ROW_BYTES:
        rows, expected = some_rows(PLACES, row_bytes), some_rows(SLOTS, row_bytes, seed=1)
        staging, into = staged(driver, rows), torch.from_numpy(expected).cuda()
        torch.cuda.synchronize()
        for places, slots in (
            (shuffled(SLOTS, PLACES, seed=1), shuffled(SLOTS, seed=2)),
            (np.arange(9, 40), shuffled(31, SLOTS, seed=3)),
        ):
            moves = pinned_moves(driver, places, slots)
            driver.scatter(into, staging, moves)
            driver.synchronize()
            expected[slots] = rows[places]
            assert np.array_equal(into.cpu().numpy(), expected), row_bytes
        alias = shuffled(SLOTS, seed=4)[:99].repeat(3)
        out, _ = driver.gather(into, alias)
        driver.synchronize()
        assert np.array_equal(out.cpu().numpy(), expected[alias]), row_bytes
    driver.close()


def test_a_launch_warns_of_nothing(driver: TorchDriver) -> None:
    rows, every = some_rows(SLOTS, 512), np.arange(SLOTS, dtype=np.int32)
    staging, moves = staged(driver, rows), pinned_moves(driver, every, every)
    into = driver.allocate(rows.size).view(rows.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            driver.scatter(into, staging, moves)
            driver.synchronize()
            driver.gather(into, every)
            driver.synchronize()
