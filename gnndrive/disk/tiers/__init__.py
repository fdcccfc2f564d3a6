"""Tiers: they are what lies below the feature buffer, and bring the rows that it misses.

To add one, write one file here with a subclass of `Tier` (`base.py`) that has a `name` and a class
method `make(context: TierContext)`.
`tests/disk/tiers/test_conformance.py` holds every plug-in of the kind to its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gnndrive.common.plugins import find
from gnndrive.disk.tiers.base import Tier, TierContext

__all__ = ["make_chain"]


def make_chain(
    tiers: Sequence[Any], context: TierContext, lowest: Callable[[Tier], Tier] | None = None
) -> Tier:
    """Make a strategy's chain of tiers for one table and return the highest, which is the first of
    `tiers`. Each gets the context with the tier below it; `lowest` may put another one above the
    lowest."""
    made: Tier | None = None
    for part in reversed(tiers):
        kind: type[Tier] = find("tiers", part)
        tier = kind.make(replace(context, below=made))
        made = tier if lowest is None or made is not None else lowest(tier)
    assert made is not None, "every strategy has at least one tier"
    return made
