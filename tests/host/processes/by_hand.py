"""What ranks do in `test_by_hand.py`: functions that `starter.py` runs in each rank."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gnndrive
from gnndrive.host.connect import service_of
from gnndrive.host.inquiry import ask
from tests.host.processes.programs import Rank, after_step, digest, loader, services


def ranks_of_a_service(rank: Rank, name: str) -> dict[str, Any]:
    """An epoch over the store of a service by hand, and what that reports in its middle."""
    store = gnndrive.connect(name)
    address = service_of(store)
    assert address is not None
    with loader(store) as made:
        iterator = iter(made)
        batches = [digest(batch) for batch in islice(iterator, 2)]
        after_step(rank)
        clients = [(each.rank, each.ranks, each.group) for each in ask(address).clients]
        after_step(rank)
        batches += [digest(batch) for batch in iterator]
        engine = made.stats()["engine"]
    return {"batches": batches, "clients": clients, "engine": engine, "started": services()}
