"""A second implementation of every kind of plug-in, each against the base interface of its kind.

They show that a kind is open: a strategy is composed of them in tests/loader, without a change of
the package, and each goes through the conformance test of its kind. `SECOND` has them by kind, and
`used` counts by kind how often one did its work.
"""

from __future__ import annotations

from typing import Any

from tests.second.device import Copier
from tests.second.engine import OneThread
from tests.second.layout import Reversed
from tests.second.policy import Pairs
from tests.second.sampler import Runs
from tests.second.schedule import Dealt
from tests.second.tier import Keeping
from tests.second.topology import Widened
from tests.second.use import used

__all__ = [
    "SECOND", "Copier", "Dealt", "Keeping", "OneThread", "Pairs", "Reversed", "Runs", "Widened",
    "used",
]  # fmt: skip

SECOND: dict[str, Any] = {
    "schedules": Dealt,
    "samplers": Runs,
    "topologies": Widened,
    "policies": Pairs,
    "devices": Copier,
    "layouts": Reversed,
    "engines": OneThread,
    "tiers": Keeping,
}
