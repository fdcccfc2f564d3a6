"""The memory of a superbatch that is sampled before the feature buffer is made (Ginex §4).

With `phases="apart"` the adjacency and the samplers' scratch take the feature buffer's place while
a superbatch is sampled. The plan lists what is in memory while batches are extracted, and
`apart_text` says what sampling takes, or refuses what does not fit.
"""

from __future__ import annotations

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import SAMPLING, WHILE_SAMPLING, other_items
from gnndrive.plan.requirements import Requirements


def apart_text(
    requirements: Requirements, topology: TopologyChoice | None, memory: int | None
) -> tuple[str, ...]:
    """What the plan prints of the sampling phase; empty: there is none.

    Raises:
        ConfigError: it needs more than `memory`.
    """
    if not requirements.apart:
        return ()
    items = [i for i in other_items(requirements, topology) if i.what in WHILE_SAMPLING]
    needed = sum(item.host_bytes for item in items)
    own = ", ".join(
        f"{item.what} {format_size(item.host_bytes)} ({item.why})"
        for item in items if item.what in SAMPLING
    )  # fmt: skip
    if memory is not None and needed > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is less than sampling apart can need, "
            f"{format_size(needed)}: give that much, fewer samplers=, or topology='direct'\n{own}"
        )
    return (
        f"while a superbatch is sampled: {format_size(needed)} in all, without the feature buffer: "
        f"{own}",
    )
