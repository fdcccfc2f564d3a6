"""`PartitionSettings`: what a partitioned folder depends on, beside the store.

A writer that was killed is continued only with the same settings: they name its hidden folder.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.store.parsing import Record

METHODS = ("auto", "metis", "ldg", "random", "file")
STATIC_DEFAULT = 0.04
PARTS_MAX = 1 << 31
_DIGITS = 12
_FILE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What a partitioned folder depends on, beside the store.

    Attributes:
        method: how the partition of each node is found, one of `METHODS`.
        parts: the number of partitions; some may be empty.
        static: the share of the nodes whose lists are copied to be held in memory; 0 to 1.
        train_first: whether the nodes of the split "train" fill the first partitions.
        seed: the seed of random choices.
        file: of the method "file", the SHA-256 of the file that gives the partitions; else "".

    Raises:
        ConfigError: a value is none that partition.json may hold.
    """

    method: str
    parts: int
    static: float = STATIC_DEFAULT
    train_first: bool = False
    seed: int = 0
    file: str = ""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r}: give one of {', '.join(METHODS)}")
        if type(self.parts) is not int or not 1 <= self.parts < PARTS_MAX:
            raise ConfigError(
                f"parts={self.parts!r}: give a whole number from 1 to {PARTS_MAX - 1}"
            )
        if not isinstance(self.static, float | int) or isinstance(self.static, bool):
            raise ConfigError(f"static={self.static!r}: give a share of the nodes, from 0 to 1")
        if not (math.isfinite(self.static) and 0 <= self.static <= 1):
            raise ConfigError(f"static={self.static!r}: give a share of the nodes, from 0 to 1")
        if type(self.seed) is not int or not -(1 << 63) <= self.seed < 1 << 64:
            raise ConfigError(f"seed={self.seed!r}: give a whole number of 64 bits")
        if (self.method == "file") != bool(_FILE.fullmatch(self.file)):
            raise ConfigError(
                f"file={self.file!r}: give the SHA-256 of the file with method='file', and nothing "
                "with another method"
            )

    @property
    def digest(self) -> str:
        """12 hexadecimal digits of the settings' SHA-256, for the hidden folder's name."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=True, allow_nan=False)
        return sha256(text.encode()).hexdigest()[:_DIGITS]

    def as_dict(self) -> dict[str, Any]:
        """The settings in a form that JSON can hold; equal settings are equal there."""
        return asdict(self) | {"static": float(self.static)}

    @property
    def said_method(self) -> str:
        """How the partitions were found, in words."""
        name = "from a file" if self.method == "file" else self.method
        return f"{name}, training nodes first" if self.train_first else name

    def texts(self) -> list[str]:
        """See `LayoutSettings.texts`."""
        count = f"{self.parts:,} partition{'' if self.parts == 1 else 's'}"
        return [count, self.said_method, f"seed {self.seed}", f"{percent(self.static)} static"]


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.3g} %"


def parse_settings(record: Record) -> PartitionSettings:
    """The settings in a partition.json, which may come from a stranger.

    Raises:
        StoreError: they are damaged.
    """
    static, seed = record.value("static", float), record.value("seed", int)
    try:
        return PartitionSettings(
            record.text("method"), record.whole("parts"), static,
            record.value("train_first", bool), seed, record.text("file"),
        )  # fmt: skip
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None
