"""How a loader samples: the check of `sampling=`, and its sampler.

`Assembly` calls it. Plain neighbour sampling is the work of the strategy's sampler; what needs
PyG's own form goes through a `SubgraphSampler`, which draws for each target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, name_of
from gnndrive.pyg.links_inside import LinksInside
from gnndrive.pyg.subgraph_sampler import SubgraphSampler, SubgraphSampling
from gnndrive.sampling.labor import Sampling, sampling_of
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.schedules.base import InputEdges, InputNodes
from gnndrive.store.reader import Store
from gnndrive.strategies.base import Strategy


def checked_sampling(
    own: Mapping[str, Any], strategy: Strategy, repeat: bool, subgraphs: bool
) -> Sampling:
    """Check `sampling=`.

    Args:
        own: the values of `OWN_ARGUMENTS`.
        strategy: the loader's.
        repeat: the loader's `replace=`.
        subgraphs: whether samples are in PyG's own form.

    Raises:
        ConfigError: there is no such sampling, or the strategy's sampler or the loader's other
            arguments cannot have it.
    """
    sampling = sampling_of(own["sampling"])
    sampling.check(repeat)
    if not sampling.shares:
        return sampling
    if subgraphs:
        raise ConfigError(
            f"sampling={sampling.name!r} is for seed nodes and plain neighbours of one type: for "
            "edges as seeds, several types, times, weights, disjoint trees, induced or "
            'bidirectional subgraphs or a sampler of your own give sampling="neighbor"'
        )
    if not find("samplers", strategy.sampler).shares_numbers:
        raise ConfigError(
            f"the sampler {name_of(strategy.sampler)!r} of strategy={strategy.name!r} draws for "
            f"each node by itself, not with sampling={sampling.name!r}: give "
            'sampling="neighbor", or another strategy'
        )
    return sampling


def make_sampler(
    kind: Any,
    context: SamplerContext,
    inputs: InputNodes | InputEdges,
    how: SubgraphSampling | None,
) -> Sampler:
    """Make a loader's sampler.

    Args:
        kind: the strategy's sampler: a plug-in.
        context: without `subgraphs`.
        inputs: the nodes or edges that seeds are drawn from.
        how: see `Assembly.subgraphs`.
    """
    if how is not None:
        of_edges = isinstance(inputs, InputEdges)
        made: Callable[[], Sampler] = partial(LinksInside, how, of_edges, context)
        if context.window_nodes is None:
            made = partial(SubgraphSampler, how, of_edges, inputs.type, context.limits)
        context = replace(context, subgraphs=made)
    plugin: type[Sampler] = find("samplers", kind)
    return plugin.make(context)


def drawn_text(sampling: Sampling, how: SubgraphSampling | None) -> str:
    """A text that identifies how neighbours are drawn; "" for plain neighbour sampling."""
    return sampling.identity if how is None else how.identity


def list_bytes(
    sampling: Sampling, num_neighbors: Any, store: Store, how: SubgraphSampling | None
) -> int:
    """See `PlanRequest.candidate_bytes`."""
    if how is not None:
        return how.candidate_bytes
    return sampling.scratch_bytes(num_neighbors, store.num_edges)
