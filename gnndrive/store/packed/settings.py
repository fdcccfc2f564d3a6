"""`PackSettings`: what a pack depends on, beside the store; compared by name.

A loader finds the pack whose `SAMPLING` settings equal its own. The other settings decide how the
recorded batches are placed on disk; packs that differ only in these replay the same batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.store.format import COUNT_MAX
from gnndrive.store.parsing import Record

SAMPLING = (
    "inputs", "batch_size", "drop_last", "shuffle", "num_neighbors", "replace", "sampling",
)  # fmt: skip
"""The settings that a loader and a pack must share."""

ORDERS = ("sets", "minhash", "id")
_SPOKEN = {"num_neighbors": "fanout", "inputs": "the input nodes or edges"}
_DIGITS = 12
_OPTIONAL = ("segment", "memory", "disk")
_RANGES = dict.fromkeys(("batch_size", "epochs", "segment"), (1, COUNT_MAX))
_RANGES |= dict.fromkeys(("memory", "disk", "device_memory"), (0, COUNT_MAX))
_RANGES["seed"] = -(1 << 63), 1 << 64


@dataclass(frozen=True, slots=True)
class PackSettings:
    """What a pack depends on, beside the store.

    Attributes:
        inputs: the text that identifies the input nodes or edges.
        batch_size, drop_last, shuffle, replace: the loader's arguments.
        num_neighbors: the loader's argument in a form that JSON can hold: a list, or a dict of
            lists by the types' names.
        sampling: the text that identifies how PyG's samplers draw; "" for plain neighbour sampling.
        seed: the seed that the recorded epochs are drawn with.
        epochs: the number of recorded epochs.
        order: how rows are ordered inside a segment, one of `ORDERS`.
        segment: batches of a segment; None: the smallest that fits on the disk.
        memory: bytes of host memory that training will have; None: it was not said.
        device_memory: bytes of device memory for hot rows.
        disk: the most bytes of the pack; None: as many as it takes.

    Raises:
        ConfigError: a number is none that pack.json may hold, or there is no such order.
    """

    inputs: str
    batch_size: int
    drop_last: bool
    shuffle: bool
    num_neighbors: Any
    replace: bool
    sampling: str = ""
    seed: int = 0
    epochs: int = 1
    order: str = "sets"
    segment: int | None = None
    memory: int | None = None
    device_memory: int = 0
    disk: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}: give one of {', '.join(ORDERS)}")
        for name, (least, end) in _RANGES.items():
            number = getattr(self, name)
            if number is None and name in _OPTIONAL:
                continue
            if type(number) is not int or not least <= number < end:
                raise ConfigError(
                    f"{name}={number!r}: give a whole number from {least} to {end - 1}"
                )

    @property
    def digest(self) -> str:
        """The name of the pack's folder: 12 hexadecimal digits of the settings' SHA-256."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=True, allow_nan=False)
        return sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def batches(self) -> str:
        """A text that identifies the recorded batches; packs that place them otherwise share it."""
        named = {name: getattr(self, name) for name in (*SAMPLING, "seed", "epochs")}
        return sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:_DIGITS]

    def as_dict(self) -> dict[str, Any]:
        """The settings in a form that JSON can hold."""
        return asdict(self)

    def texts(self) -> list[str]:
        """See `LayoutSettings.texts`; the epochs first."""
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        parts = [epochs, f"fanout {said(self.num_neighbors)}", f"batch size {self.batch_size}"]
        parts += [f"seed {self.seed}", f"order {self.order}"]
        return parts if self.shuffle else [*parts, "not shuffled"]


def said(value: Any) -> str:
    """A setting as the command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {said(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


def parse_settings(record: Record) -> PackSettings:
    """The settings in a pack.json, which may come from a stranger.

    Raises:
        StoreError: they are damaged.
    """
    wholes = ("batch_size", "epochs", "device_memory")
    given: dict[str, Any] = {name: record.text(name) for name in ("inputs", "sampling", "order")}
    given["seed"] = record.value("seed", int)
    for name in (*wholes, *_OPTIONAL):
        absent = name in _OPTIONAL and record.fields.get(name, 0) is None
        given[name] = None if absent else record.whole(name)
    for name in ("drop_last", "shuffle", "replace"):
        given[name] = record.value(name, bool)
    given["num_neighbors"] = _fanout(record)
    try:
        return PackSettings(**given)
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None


def _fanout(record: Record) -> Any:
    fanout = record.fields.get("num_neighbors")
    lists = list(fanout.values()) if isinstance(fanout, dict) else [fanout]
    for each in lists:
        if not isinstance(each, list) or any(type(n) is not int or n < -1 for n in each):
            raise record.error("has a 'num_neighbors' that is no list of numbers for each hop")
    return fanout


def differences(
    there: PackSettings, wanted: PackSettings, names: tuple[str, ...] = SAMPLING
) -> list[str]:
    """The settings in which a pack differs from what is wanted, each as a text: "fanout was [10]
    and is [5]"; empty: none.

    Args:
        there: the pack's settings.
        wanted: the loader's.
        names: the settings to compare.
    """
    found = []
    for name in names:
        was, now = getattr(there, name), getattr(wanted, name)
        if was != now:
            found.append(f"{_SPOKEN.get(name, name)} was {_shown(was)} and is {_shown(now)}")
    return found


def _shown(value: Any) -> str:
    return repr(value) if value != "" else "that of plain neighbour sampling"


assert set(SAMPLING) <= {each.name for each in fields(PackSettings)}
