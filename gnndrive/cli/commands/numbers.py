"""Counts and rates as people write them: "1.62G" edges, a net of "10Gbit"."""

from __future__ import annotations

import re
from decimal import Decimal

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size

_PREFIXES = {prefix: 1000**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}


def parse_count(text: str, name: str) -> int:
    """A whole number from 1 on, such as "1200", "1,200", "111M", "1.62G".

    Args:
        text: what the user gave.
        name: the option's name, for the error.

    Raises:
        ConfigError: it is no such number.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", text.replace(",", "").strip().upper())
    count = Decimal(match[1]) * _PREFIXES[match[2]] if match else Decimal(0)
    if not 1 <= count < 2**63 or count != int(count):
        raise ConfigError(f"{name} {text}: give a whole number, such as 1200, 111M or 1.62G")
    return int(count)


def parse_rate(text: str, name: str) -> float:
    """Bytes a second in "10Gbit", "500Mbit/s", "10Gbps", "1.25GB/s" or a number of bytes.

    Args:
        text: what the user gave.
        name: the option's name, for the error.

    Raises:
        ConfigError: it is no rate, or not positive.
    """
    wrong = ConfigError(f"{name} {text}: give a rate such as 10Gbit, 500Mbit or 1.25GB/s")
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kKMGT]?)(bit(?:/s)?|bps)", text.strip())
    if match:
        rate = Decimal(match[1]) * _PREFIXES[match[2].upper()] / 8
        if not rate:
            raise wrong
        return float(rate)
    if re.search(r"[0-9]\s*[kKMGT]b(/s)?$", text):  # bits or bytes
        raise wrong
    try:
        return float(parse_size(text.removesuffix("/s"), name))
    except ConfigError:
        raise wrong from None
