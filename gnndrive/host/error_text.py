"""Errors as JSON objects: how the host service tells a rank why a batch failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gnndrive.common.errors import (
    ClosedError,
    ConfigError,
    GNNDriveError,
    HostServiceError,
    ReadError,
    StoreError,
)
from gnndrive.common.limits import LimitError

_NAMED: Mapping[str, type[Exception]] = {
    each.__name__: each for each in (ClosedError, ConfigError, StoreError, IndexError, MemoryError)
}
_LIMITS = "whose limits are its shell's, or LimitNOFILE= and LimitNPROC= of its systemd unit"
_ERRNO_MAX = 4095
_TEXT_MAX = 5000  # characters of a message, each up to 12 bytes of JSON; see MESSAGE_BYTES_MAX


def error_text(error: BaseException) -> dict[str, Any]:
    """An error as a JSON object."""
    if isinstance(error, BaseExceptionGroup):
        return error_text(error.exceptions[0])
    if isinstance(error, ReadError):
        return {"read": [error.path, error.offset, error.errno or 0]}
    if isinstance(error, LimitError):
        error = ConfigError(f"in the service (process {os.getpid()}, {_LIMITS}): {error}")
    name = type(error).__name__
    message = str(error) if name in _NAMED or isinstance(error, GNNDriveError) else repr(error)
    return {"error": name, "message": message[:_TEXT_MAX]}


def error_from(text: Mapping[str, Any]) -> Exception:
    """The error that `error_text` made a JSON object of; a HostServiceError if a rank cannot have
    it."""
    match text:
        case {"read": [str(path), int(offset), int(errno)]} if 0 <= errno <= _ERRNO_MAX:
            return ReadError(path, offset, errno)
        case {"error": str(name), "message": str(message)}:
            kind = _NAMED.get(name)
            if kind is None:
                return HostServiceError(f"the host service failed: {message}")
            return kind(message)
    return HostServiceError("the host service failed and did not say why")
