"""What can be chosen in how a GPU's rows are moved; `bench/gpu.py --switch blocks=128` measures it.

The defaults are what the device does unless a measurement asks for something else. With nothing
beside it, moving rows takes as long with any of them, within 1 % (an H100, docs/gpu-results.md);
what they change beside training on large models has not been measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from gnndrive.common.errors import ConfigError

_SPELLINGS = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class MoveOptions:
    """Switches of the CUDA device.

    Attributes:
        blocks: most blocks of a launch that reads or writes rows of host memory; 0: no limit. A
            block has 256 threads, and each warp moves whole rows. Few blocks leave the GPU's other
            multiprocessors to training.
        gather_stream: gather on a stream of its own, for which the compute stream waits, instead of
            on the compute stream.
    """

    blocks: int = 0
    gather_stream: bool = False
    portions: int = 4  # as many as the paper has extractors

    def __post_init__(self) -> None:
        if self.blocks < 0:
            raise ConfigError(f"blocks={self.blocks}: give at least 1, or 0 for no limit")
        if self.portions < 1:
            raise ConfigError(f"portions={self.portions}: give at least 1")

    @classmethod
    def parse(cls, switches: Iterable[str]) -> MoveOptions:
        """Options from texts such as "blocks=128" and "gather_stream=on"; without "=" it is on.

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
