"""What a loader says of a batch that is late."""

import asyncio
from types import SimpleNamespace

from gnndrive.common.errors import PeerError
from gnndrive.loader.sharing import RankBuffers


def test_a_rank_that_was_lost_meanwhile_is_named():
    async def awaited():
        raise PeerError(1, "cannot be reached")

    waits = SimpleNamespace(buffer=SimpleNamespace(awaited=awaited), _rank=0, owner="")
    assert "rank 1 cannot be reached" in asyncio.run(RankBuffers.late_reason(waits))
