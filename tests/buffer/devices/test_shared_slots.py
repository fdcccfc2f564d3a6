"""Slots that processes share: one lands rows in them, the others gather."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices.base import Device, DeviceContext, SlotMemory
from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.common.records import EngineSettings
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.disk.engines.base import Engine
from tests.buffer.devices.moving import gathered, load, shuffled, some_rows
from tests.disk.engines.conftest import drain, make_rows

SLOTS, ROW_BYTES = 300, 512


class Shared:
    """A device whose slots are shared memory, as the process that reads has it."""

    def __init__(self) -> None:
        self.memories: list[SharedMemory] = []
        self.device: Device = find("devices", "host").make(DeviceContext(map=self._map))

    def _map(self, nbytes: int) -> mmap.mmap:
        self.memories.append(SharedMemory.create(nbytes, "slots"))
        return self.memories[-1].map

    def received(self, nbytes: int = SLOTS * ROW_BYTES) -> Device:
        """A device over the same slots, as a process that only gathers has it."""
        fd = os.dup(self.memories[-1].fd)
        attached = SharedMemory.attach(fd, nbytes)
        made: Device = find("devices", "host").make(DeviceContext(map=lambda _: attached.map))
        return made


async def compare(device: Device, memory: SlotMemory, rows: np.ndarray) -> None:
    for count in (SLOTS, 1, 33):
        alias = shuffled(count, SLOTS, seed=count)
        assert np.array_equal(await gathered(device, memory, alias, ROW_BYTES), rows[alias])


async def test_another_process_gathers_what_landed():
    shared, rows = Shared(), some_rows(SLOTS, ROW_BYTES)
    ours = shared.device.allocate(SLOTS, ROW_BYTES)
    reader = shared.received()
    theirs = reader.allocate(SLOTS, ROW_BYTES)
    await load(ours, np.arange(SLOTS, dtype=np.int32), rows)
    await compare(reader, theirs, rows)
    ours.close()
    shared.memories[-1].close()
    await compare(reader, theirs, rows)
    theirs.close()


@pytest.mark.parametrize("engine", ["uring", "threads"])
async def test_engines_read_into_shared_slots(tmp_path, engine):
    shared, table = Shared(), make_rows(tmp_path, ROW_BYTES, SLOTS)
    ours = shared.device.allocate(SLOTS, ROW_BYTES)
    slots = shuffled(SLOTS)
    landing = ours.landing(slots)
    kind: type[Engine] = find("engines", engine)
    reader = kind.make(EngineSettings(depth=8))
    job = table.table.locate(np.arange(SLOTS, dtype=np.int64), slots, landing)
    landed, failures = await drain(reader, job)
    await reader.aclose()
    assert sorted(landed) == list(range(SLOTS))
    assert not failures
    device = shared.received()
    rows = np.empty_like(table.content)
    rows[slots] = table.content
    await compare(device, device.allocate(SLOTS, ROW_BYTES), rows)


def test_who_only_gathers_cannot_land_rows():
    shared = Shared()
    shared.device.allocate(SLOTS, ROW_BYTES)
    memory = shared.received().allocate(SLOTS, ROW_BYTES)
    with pytest.raises(AssertionError, match="another process lands"):
        memory.landing(np.arange(3, dtype=np.int32))


def test_a_forked_child_does_not_map_shared_slots():
    shared = Shared()
    memory = shared.device.allocate(SLOTS, ROW_BYTES)
    address = memory.landing(np.arange(1, dtype=np.int32)).address  # type: ignore[union-attr]
    child = os.fork()
    if not child:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            starts = [int(line.split("-", 1)[0], 16) for line in maps]
        os._exit(1 if address in starts else 0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("slots", [SLOTS + 1, 1 << 40])
def test_too_little_shared_memory_is_refused(slots):
    shared = Shared()
    shared.device.allocate(SLOTS, ROW_BYTES)
    with pytest.raises(ConfigError, match=r"and was given 153,600.*same version of gnndrive"):
        shared.received().allocate(slots, ROW_BYTES)


def test_slots_are_private_memory_unless_another_map_is_given():
    assert DeviceContext().map is private_map
    memory = find("devices", "host").make(DeviceContext()).allocate(3, ROW_BYTES)
    rows, _ = memory.gather(np.array([0, 2], np.int32), torch.uint8, (ROW_BYTES,))
    assert not rows.any()
