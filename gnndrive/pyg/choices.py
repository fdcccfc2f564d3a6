"""Checks of PyG's arguments, for `NeighborSampler` and for loaders over a store.

Those checked here are one of a few values, a function, or a dense tensor. Node ids, edges and
numbers of neighbours are checked by the loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from torch_geometric.sampler.base import SubgraphType

from gnndrive.common.errors import ConfigError
from gnndrive.store.convert import is_sparse

Choice = TypeVar("Choice", bound=Enum)


def checked_choice(kind: type[Choice], name: str, value: Any) -> Choice:
    """The member of an enumeration that the argument `name` names: a member, or the value of one.
    The message of a ConfigError lists all."""
    try:
        return kind(value)
    except ValueError:
        pass
    values = ", ".join(repr(member.value) for member in kind)
    raise ConfigError(f"{name}={value!r}: give one of {values}") from None


def checked_subgraph_type(value: Any, directed: bool = True) -> SubgraphType:
    """Check `subgraph_type=`; `directed=False`, which PyG deprecates, means "induced"."""
    kind = checked_choice(SubgraphType, "subgraph_type", value)
    return kind if directed else SubgraphType.induced


def checked_temporal_strategy(value: Any) -> str:
    """Check `temporal_strategy=`, which is "uniform" or "last"."""
    if value not in ("uniform", "last"):
        raise ConfigError(f"temporal_strategy={value!r}: give 'uniform' or 'last'")
    return str(value)


def check_sampling(arguments: Mapping[str, Any]) -> None:
    """Check those of a loader's arguments, by name, that are one of a few values, functions, or a
    sampler; others are ignored."""
    checked_subgraph_type(arguments.get("subgraph_type", "directional"))
    checked_temporal_strategy(arguments.get("temporal_strategy", "uniform"))
    for name in ("transform", "transform_sampler_output"):
        value = arguments[name]
        if value is not None and not callable(value):
            raise ConfigError(f"{name}={value!r} cannot be called: give a function, or None")
    sampler = arguments.get("neighbor_sampler")
    if sampler is not None and not hasattr(sampler, "sample_from_nodes"):
        raise ConfigError(
            f"neighbor_sampler={sampler!r} has no method sample_from_nodes: give a sampler of PyG "
            "(torch_geometric.sampler.BaseSampler), or None"
        )


def refuse_sparse(**arguments: Any) -> None:
    """Refuse arguments that are sparse tensors; they are known by their names."""
    for name, value in arguments.items():
        if is_sparse(value):
            raise ConfigError(f"{name} is sparse: give a dense tensor, {name}.to_dense()")
