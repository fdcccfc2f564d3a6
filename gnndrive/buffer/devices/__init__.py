"""Devices: where the feature buffer lives. Each file without an underscore, but `base.py`, is one.

The loader's arguments call `choose`; the runtime makes the device that it found. To add a device,
enter it in `MAKE` of tests/buffer/devices/conftest.py too: a test fails without it.
`tests/buffer/devices/test_conformance.py` holds every plug-in of the kind to its contract.
"""

from __future__ import annotations

from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, names

__all__ = ["choose"]

_OF_TORCH = {"cpu": "host", "cuda": "cuda"}


def choose(device: Any) -> tuple[Any, torch.device | None]:
    """Find the device that a loader's `device=` names.

    Args:
        device: a torch device, such as "cpu" or "cuda:1"; or one of gnndrive's devices, by name or
            as a class.

    Returns:
        The plug-in (name or class), and which device of its kind, with its number; None if there is
        only one.

    Raises:
        ConfigError: it is not a device, or this machine does not have it.
        NotImplementedError: it is a torch device in which no feature buffer can live.
    """
    if isinstance(device, type) or (device in names("devices") and device not in _OF_TORCH):
        return find("devices", device) if isinstance(device, type) else device, None
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r} is not a torch device; use 'cpu' or 'cuda'") from None
    if where.type not in _OF_TORCH:
        raise NotImplementedError(
            f"device={str(device)!r} is not supported; use 'cpu' or 'cuda' and move batches"
        )
    plugin = _OF_TORCH[where.type]
    checked = find("devices", plugin).check(where)
    return plugin, None if where.type == "cpu" else checked
