"""Parse options of the command line that are lists."""

from __future__ import annotations

from collections.abc import Sequence

from gnndrive.common.errors import ConfigError
from gnndrive.store.importers.splits import RandomSplit, SplitSpec


def parse_fanout(text: str) -> tuple[int, ...]:
    """Parse a text such as "10,10" to (10, 10).

    Raises:
        ConfigError: the text is no list of whole numbers.
    """
    try:
        fanout = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--fanout {text}: give a whole number for each hop, separated by commas: 10,10"
        ) from None
    return fanout


def parse_splits(values: Sequence[str], seed: int) -> SplitSpec:
    """Parse the values of `gnndrive import --split` to what importers take.

    Args:
        values: "none", or one "0.6,0.2,0.2", or any number of "NAME=FILE".
        seed: seed of a random split.

    Raises:
        ConfigError: the values have another form.
    """
    if list(values) == ["none"]:
        return None
    if all("=" in value for value in values):
        return dict(value.split("=", 1) for value in values)
    try:
        (value,) = values
        train, val, test = (float(part) for part in value.split(","))
    except ValueError:
        raise ConfigError(
            f"--split {' '.join(values)}: give the shares of train, val and test as 0.6,0.2,0.2, "
            "or NAME=FILE once for each split, or none"
        ) from None
    return RandomSplit(train, val, test, seed)
