"""The memory of what ranks that share a feature buffer hand to the host service."""

from __future__ import annotations

from collections.abc import Iterator

from gnndrive.common.items import Item, Owner, Phase, Shape

# An announced row: its id in the rank's arena; and from its batch's turn on, in the service too.
ANNOUNCED_BYTES, JOINED_BYTES = 4, 8


class AnnouncedRows:
    """The rows of the batches that are queued on all ranks."""

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        if not shape.shared:
            return
        announced, joined = shape.queued * shape.ranks, shape.extracted * shape.ranks
        nbytes = (ANNOUNCED_BYTES * announced + JOINED_BYTES * joined) * shape.entries
        why = f"row ids of {announced} batches of all ranks"
        yield Item("announced rows", nbytes, why, Owner.BUFFER, during=Phase.EXTRACTION)
