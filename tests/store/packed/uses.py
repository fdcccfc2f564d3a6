"""Random recorded batches: small ones of every kind, and a model of a large graph."""

from __future__ import annotations

from typing import Any

import numpy as np

SHARE = 0.0869  # of all nodes in a batch: ten million nodes, 1,000 seeds, fanout 10,10,10
HOT = 0.4475  # of all nodes are hot: 1.79 of 4 GB


def small(random: np.random.Generator) -> tuple[list[Any], int]:
    """Batches of ids, some of which come twice in a batch, and the number of nodes."""
    nodes, batches = int(random.integers(1, 60)), int(random.integers(1, 40))
    dtype = random.choice([np.int32, np.int64])
    popular = random.random(nodes) ** random.integers(1, 6) + 1e-9
    sizes = random.integers(0, nodes + 1, batches).tolist()
    twice = bool(random.integers(3) == 0)
    return [
        random.choice(nodes, size if twice else min(size, nodes), twice, popular / popular.sum())
        .astype(dtype)
        for size in sizes
    ], nodes  # fmt: skip


def power_law(nodes: int, batches: int, seed: int = 0) -> list[Any]:
    """Batches of distinct ids in ascending order. How often a node is used follows a power law, and
    a node's id does not tell it. The exponent is such that the hottest 20, 38 and 51 % of the nodes
    have 40, 57 and 66 % of the uses, as in a generated graph of ten million nodes."""
    random = np.random.default_rng(seed)
    chance = 0.6 * SHARE * ((np.arange(nodes) + 0.5) / nodes) ** -0.4
    chance = chance[random.permutation(nodes)]
    return [np.flatnonzero(random.random(nodes) < chance) for _ in range(batches)]
