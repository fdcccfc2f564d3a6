"""`LoaderOptions`: the options of the commands that say how batches are loaded, listed once.

`with_loader_options` gives them to a command that has a parameter `options: LoaderOptions`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_type_hints

import torch
import typer

from gnndrive.cli.commands.options import (
    BATCH_SIZE,
    FANOUT,
    SAMPLING,
    BatchSize,
    Buffer,
    Device,
    Fanout,
    Memory,
    Sampling,
    Seed,
    StrategyName,
)
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import size_or_none
from gnndrive.common.names import did_you_mean
from gnndrive.common.plugins import find
from gnndrive.loader.arguments import TUNING, Tuning, checked_device
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.store.reader import Store
from gnndrive.strategies.base import strategy as find_strategy
from gnndrive.strategies.base import values_in

SAMPLERS = 4  # of batches that are drawn


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How batches are loaded; `NeighborLoader` explains the arguments."""

    fanout: Fanout = FANOUT
    batch_size: BatchSize = BATCH_SIZE
    strategy: StrategyName = "gnndrive"
    sampling: Sampling = SAMPLING
    seed: Seed = 0
    memory: Memory = None
    buffer: Buffer = None
    device: Device = "cpu"
    device_memory: Annotated[
        str | None,
        typer.Option(
            help="GPU memory for loading, such as 4GB, or 0: rows are in host memory; default: "
            "measured (pack: none)."
        ),
    ] = None
    tuning: Annotated[
        str | None,
        typer.Option(
            help="How the pipeline works, as topology=direct,samplers=2: the arguments of "
            "gnndrive.Tuning."
        ),
    ] = None

    @property
    def hops(self) -> tuple[int, ...]:
        """The fanout of each hop; ConfigError: `--fanout` is no list of whole numbers."""
        try:
            return tuple(int(part) for part in self.fanout.split(","))
        except ValueError:
            raise ConfigError(
                f"--fanout {self.fanout}: give a whole number for each hop, separated by commas: "
                "10,10"
            ) from None

    @property
    def tuned(self) -> Tuning:
        """`--tuning`; without samplers, as many as the strategy decides: 4 to draw from the whole
        graph, else "auto"."""
        decides = not find_strategy(self.strategy).whole_graph
        given: dict[str, Any] = {} if decides else {"samplers": SAMPLERS}
        return Tuning(**given | parse_tuning(self.tuning))

    def drawn(self) -> LoaderOptions:
        """The same for batches of an evaluation, which are drawn from the whole graph."""
        if find_strategy(self.strategy).whole_graph:
            return self
        return replace(self, strategy="gnndrive")

    def where(self) -> torch.device:
        """Where the batches are."""
        device: torch.device | None = checked_device(self.device, self.device_memory)[1]
        return torch.device("cpu") if device is None else device

    def device_bytes(self) -> int | None:
        """Bytes of the device's own memory that loading may use; None: it uses the host's."""
        plugin, where = checked_device(self.device, self.device_memory)
        if given := size_or_none(self.device_memory or 0, "device_memory"):
            return given
        free: int | None = find("devices", plugin).free_bytes(where)
        return free

    def loader(self, store: Store, seeds: Any, shuffle: bool, **more: Any) -> NeighborLoader:
        """Make a loader over `seeds`; `more` has further arguments of it, or arguments in place of
        these options, those of `Tuning` too. Batches have what training reads, whatever else the
        store has."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        del given["fanout"], given["tuning"]
        given["attrs"] = trained_attributes(store)
        given |= placed(vars(self.tuned) | more)
        return NeighborLoader(store, list(self.hops), seeds, shuffle=shuffle, **given)


def trained_attributes(store: Store) -> list[str]:
    """The names of the attributes that training reads, of those that a store has."""
    views = (*store.all_nodes(), *store.all_edges())
    return [name for name in ("x", "y") if any(name in view.row_names for view in views)]


def with_loader_options(
    *without: str, **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that has a parameter `options: LoaderOptions`: the options stand
    in its place.

    Args:
        without: names of options that the command does not have.
        helps: the help of options that mean something else in the command.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        types = get_type_hints(LoaderOptions, include_extras=True)
        for name, help in helps.items():
            types[name] = Annotated[types[name].__origin__, typer.Option(help=help)]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        own = [each for each in fields(LoaderOptions) if each.name not in without]
        for name, each in inspect.signature(function).parameters.items():
            if name != "options":
                parameters.append(each.replace(annotation=hints[name], kind=kind))
                continue
            parameters += [
                inspect.Parameter(one.name, kind, default=one.default, annotation=types[one.name])
                for one in own
            ]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            options = LoaderOptions(**{one.name: given.pop(one.name) for one in own})
            function(options=options, **given)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return made


def parse_tuning(text: str | None) -> dict[str, Any]:
    """The arguments of `Tuning` that a text such as "topology=direct,samplers=2" names."""
    if text is None:
        return {}
    return values_in(
        re.split(r",(?=\w+=)", text), Tuning, TUNING,
        lambda part: f"--tuning {text}: {part!r} is no argument of gnndrive.Tuning"
        f"{did_you_mean(part.partition('=')[0], TUNING)}, which has "
        f"{', '.join(TUNING)}: write NAME=VALUE,NAME=VALUE",
    )  # fmt: skip


def placed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a loader, with those of `Tuning` that stand beside the others in one."""
    tuning = {name: value for name, value in given.items() if name in TUNING}
    rest = {name: value for name, value in given.items() if name not in TUNING}
    return rest | {"tuning": Tuning(**tuning)} if tuning else rest
