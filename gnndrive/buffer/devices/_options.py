"""What can be chosen in how a GPU's rows are moved; `bench/gpu.py --switch blocks=128` measures it.

The defaults are what the device does unless a measurement asks for something else. They are the
fastest of those measured on an H100 (docs/gpu-results.md), where `loads=4 restrict=on` gathers rows
of 512 bytes 1.1 times as fast as `loads=1 restrict=off`; the others change less than a hundredth,
and so are the simplest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from gnndrive.common.errors import ConfigError

LOADS = (1, 2, 4, 8)
_SPELLINGS = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class MoveOptions:
    """Switches of the CUDA device.

    Attributes:
        blocks: most blocks of a launch that reads or writes rows of host memory; 0: no limit. A
            block has 256 threads, and each warp moves whole rows. Few blocks leave the GPU's other
            multiprocessors to training.
        places_on_device: copy the places and slots of a scatter to the device before the kernel,
            instead of letting the kernel read them in host memory.
        loads: units that each thread reads before it writes the first of them; one of `LOADS`.
        restrict: promise the compiler that source and target do not overlap.
        gather_stream: gather on a stream of its own, for which the compute stream waits, instead of
            on the compute stream.
        huge_pages: ask the kernel for huge pages under staging.
        portions: portions of staging.
    """

    blocks: int = 0
    places_on_device: bool = False
    loads: int = 4
    restrict: bool = True
    gather_stream: bool = False
    huge_pages: bool = False
    portions: int = 4  # as many as the paper has extractors

    def __post_init__(self) -> None:
        if self.blocks < 0:
            raise ConfigError(f"blocks={self.blocks}: give at least 1, or 0 for no limit")
        if self.loads not in LOADS:
            raise ConfigError(f"loads={self.loads}: choose one of {', '.join(map(str, LOADS))}")
        if self.portions < 1:
            raise ConfigError(f"portions={self.portions}: give at least 1")

    @classmethod
    def parse(cls, switches: Iterable[str]) -> MoveOptions:
        """Options from texts such as "blocks=128" and "restrict=on"; "restrict" alone is on.

        Raises:
            ConfigError: there is no such switch, or it cannot have that value.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, int] = {}
        for switch in switches:
            name, given, text = switch.partition("=")
            name = name.strip().replace("-", "_")
            if name not in known:
                raise ConfigError(f"no switch {name!r}: choose from {', '.join(known)}")
            values[name] = _value(switch, text.strip() if given else "on", known[name].default)
        return cls(**values)  # type: ignore[arg-type]  # bool where the field is one

    def __str__(self) -> str:
        """The switches that are not at their default, as `parse` takes them, or "defaults"."""
        changed = [
            f"{field.name}={'on' if value is True else 'off' if value is False else value}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return " ".join(changed) or "defaults"


def _value(switch: str, text: str, default: object) -> int:
    """The value that `text` says, a bool if the default is one."""
    if isinstance(default, bool):
        if text.lower() in _SPELLINGS:
            return _SPELLINGS[text.lower()]
        raise ConfigError(f"switch {switch!r}: give on or off")
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"switch {switch!r}: give a number") from None
