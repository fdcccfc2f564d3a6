"""Slots that processes share: one lands rows in them, the others gather."""

import mmap
import os

import numpy as np
import pytest

from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find
from gnndrive.common.shared_memory import SharedMemory
from tests.buffer.devices.moving import gathered, load, shuffled, some_rows

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


async def test_another_process_gathers_what_landed():
    """And cannot land rows itself."""
    shared, rows, alias = Shared(), some_rows(SLOTS, ROW_BYTES), shuffled(SLOTS)
    ours = shared.device.allocate(SLOTS, ROW_BYTES)
    reader = shared.received()
    theirs = reader.allocate(SLOTS, ROW_BYTES)
    await load(ours, np.arange(SLOTS, dtype=np.int32), rows)
    assert np.array_equal(await gathered(reader, theirs, alias, ROW_BYTES), rows[alias])
    ours.close()
    shared.memories[-1].close()
    assert np.array_equal(await gathered(reader, theirs, alias, ROW_BYTES), rows[alias])
    with pytest.raises(AssertionError, match="another process lands"):
        theirs.landing(alias)
    theirs.close()


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
