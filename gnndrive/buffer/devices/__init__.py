"""Devices: where the feature buffer lives."""

from __future__ import annotations

from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, names

__all__ = ["choose"]

_OF_TORCH = {"cpu": "host", "cuda": "cuda"}


def choose(device: Any) -> tuple[Any, torch.device | None]:
    """The device for what a loader's `device=` says.

    Args:
        device: a torch device, such as "cpu" or "cuda:1"; or a device of gnndrive's, by name or as
            a class.

    Returns:
        The plug-in, and which device of its kind; None where there is but one.

    Raises:
        ConfigError: it is no device, or not here.
        NotImplementedError: it is torch's, and no feature buffer can live there.
    """
    if isinstance(device, type) or (device in names("devices") and device not in _OF_TORCH):
        return find("devices", device) if isinstance(device, type) else device, None
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r} is no torch device; use 'cpu' or 'cuda'") from None
    if where.type not in _OF_TORCH:
        raise NotImplementedError(
            f"device={str(device)!r} is not built; use 'cpu' or 'cuda' and move batches yourself"
        )
    plugin = _OF_TORCH[where.type]
    find("devices", plugin).check(where)
    return plugin, None if where.type == "cpu" else where
