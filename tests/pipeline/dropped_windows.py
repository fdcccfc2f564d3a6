"""Rules 16 to 18 taken out: `drop_…` patches the keeper of windows, as in `dropped.py`."""

from typing import Any

import pytest

from gnndrive.pipeline.windows import WindowKeeper, _Held
from tests.pipeline.dropped import no_wait

Patch = pytest.MonkeyPatch


def drop_giving_up_a_chunk(patch: Patch) -> None:
    """16: the keeper waits for the slots of a chunk, in front of batches that join later."""
    lease = WindowKeeper._lease

    async def waiting(keeper: WindowKeeper, held: _Held) -> bool:
        while held.missing:
            buffer: Any = keeper._buffer
            rows = held.missing.popleft()
            held.leases.append((rows, await buffer.lease(rows)))
        return await lease(keeper, held)

    patch.setattr(WindowKeeper, "_lease", waiting)


def drop_giving_back_what_is_incomplete(patch: Patch) -> None:
    """17: an oldest window that lacks slots keeps the rows that it holds."""
    patch.setattr(_Held, "give_back", lambda held: None)


def drop_waiting_for_the_older_window(patch: Patch) -> None:
    """18: the batches of a window that lacks rows are sampled beside those of the older one."""
    patch.setattr(WindowKeeper, "_wait_for_rows", no_wait)
