"""The memory of a superbatch that is sampled before the feature buffer is made (Ginex §4).

With `phases="apart"` the adjacency and the samplers' scratch take the feature buffer's place while
a superbatch is sampled. The plan lists what is in memory while batches are extracted, and
`sampling_apart` says what sampling takes, or refuses what does not fit.
"""

from __future__ import annotations

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.items import SAMPLING, WHILE_SAMPLING, other_items
from gnndrive.plan.requirements import Requirements


def sampling_apart(
    requirements: Requirements, topology: TopologyChoice | None, memory: int | None
) -> tuple[int, tuple[str, ...]]:
    """The bytes of this host's memory that the sampling phase takes, and what the plan prints of
    it; 0 and nothing: there is no such phase.

    Raises:
        ConfigError: it needs more than `memory`.
    """
    if not requirements.apart:
        return 0, ()
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
    said = (
        f"while a superbatch is sampled: {format_size(needed)} in all, without the feature buffer: "
        f"{own}",
    )
    return needed, said
