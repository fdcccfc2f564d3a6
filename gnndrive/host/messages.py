"""The messages between ranks and the host service: what they are, and how they look on the wire.

A message is one datagram on a Unix socket of the kind SOCK_SEQPACKET, which keeps its limits: a
fixed head of 32 bytes, and for some kinds a JSON object behind it. Row ids and aliases are not in
messages but in the rank's arena (`arena.py`). A batch is named by its epoch and its step, which
each rank counts from 0.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
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

PROTOCOL = 5  # increase it when a message changes
MESSAGE_BYTES_MAX = 160_000  # a socket takes a little more at once
_HEAD = struct.Struct("<HHIqqq")  # kind, 0, epoch, step, a, b


class ProtocolError(GNNDriveError):
    """A message that breaks the protocol; its sender is disconnected."""


class Kind(IntEnum):
    """What a message says. Those up to `PULLS` come from ranks, the others from the service,
    which also passes `AWAY` and `PASSED` on."""

    HELLO = 1  # text: who connects, and what its loader needs
    ANNOUNCE = 2  # the batch's row ids are in place `a` of the arena
    JOIN = 3  # an announced batch is to be extracted, at its turn
    LEAVE = 4  # a batch is given up; answered by LEFT, unless FAILED is under way
    RELEASE_TAIL = 5  # the rows of table `a` from number `b` on have been gathered
    RELEASE = 6  # all rows of a batch that was READY have been gathered
    END = 7  # the rank has ended the epoch; LEFT answers for each of its batches
    BYE = 8  # the rank will disconnect; an exchange: because of rank `a`, if that is not −1
    ASK = 9  # answered by AWAITED
    AWAY = 10  # the user has taken `step` batches and waits in exchange `a`; to all, from rank `b`
    PASSED = 11  # to rank `a`, from rank `b`, whose user passes what the other has said in AWAY
    WINDOW_ROWS = 12  # rows `a` to `b` - 1 belong to window `step`, which is not open yet
    OPEN = 13  # the rank needs the rows of window `step`; answered by OPENED
    SHUT = 14  # the rank needs them no more; also says that it will not open the window
    FORESEE = 15  # a superbatch that begins with batch `step`: first uses of rows; see `exchange`
    PULLED = 16  # the rank's copy of a batch's rows out of SLOTS has ended, well or not
    PULLS = 17  # from now on the rank copies rows by itself: it gets SLOTS
    STATUS = 32  # from anybody: answered by REPORT, whose clients begin with client `a`
    WELCOME = 64  # text: what the service has; file descriptors come with it
    REFUSED = 65  # text: why the client is refused
    READY = 66  # all rows of a batch are valid, and its aliases are in its place
    FAILED = 67  # a batch cannot be extracted; text: the error
    LEFT = 68  # the service does not use the batch's place any more
    PEER_LOST = 69  # rank `a` has died
    AWAITED = 70  # the next turn is that of rank `a`; −1: all batches that could join have joined
    BROKEN = 71  # the service cannot extract any more; text: the error
    REPORT = 72  # text: what the service serves, and to whom
    # The rows of window `step` are valid, or it is the oldest and has what it can have. Text: where
    # its graph is, or why it cannot be loaded; empty: the rank has to load it.
    OPENED = 73
    SLOTS = 74  # where the valid rows of a batch are, answered by PULLED; see `exchange`


WITH_TEXT = frozenset({
    Kind.HELLO, Kind.WELCOME, Kind.REFUSED, Kind.FAILED, Kind.BROKEN, Kind.REPORT, Kind.OPENED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `epoch` and `step`, from 0, name a batch of the rank, if it is about one; `Kind`
    says what `a` and `b` are. Most kinds have no `text`, a JSON object."""

    kind: Kind
    epoch: int = 0
    step: int = 0
    a: int = 0
    b: int = 0
    text: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The message on the wire; ProtocolError: its text is too long."""
        head = _HEAD.pack(self.kind, 0, self.epoch, self.step, self.a, self.b)
        if self.kind not in WITH_TEXT:
            return head
        data = head + json.dumps(self.text).encode()
        if len(data) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"a message of {len(data):,} bytes is too long")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """The message in a datagram; ProtocolError: it is none."""
        if len(data) < _HEAD.size:
            raise ProtocolError(f"a message has {len(data)} bytes, fewer than a head")
        number, zero, epoch, step, a, b = _HEAD.unpack_from(data)
        if zero:
            raise ProtocolError(f"a message has {zero} where 0 belongs")
        try:
            kind = Kind(number)
        except ValueError:
            raise ProtocolError(f"there is no message of kind {number}") from None
        rest = data[_HEAD.size :]
        if kind not in WITH_TEXT:
            if rest:
                raise ProtocolError(f"{kind.name} has {len(rest)} bytes too many")
            return cls(kind, epoch, step, a, b)
        try:
            text = json.loads(rest)
        except (ValueError, RecursionError):
            raise ProtocolError(f"the text of {kind.name} is no JSON") from None
        if not isinstance(text, dict):
            raise ProtocolError(f"the text of {kind.name} is no JSON object")
        return cls(kind, epoch, step, a, b, text)


_NAMED: Mapping[str, type[Exception]] = {
    each.__name__: each for each in (ClosedError, ConfigError, StoreError, IndexError, MemoryError)
}
_LIMITS = "whose limits are its shell's, or LimitNOFILE= and LimitNPROC= of its systemd unit"
_ERRNO_MAX = 4095
_TEXT_MAX = 5000  # characters of a message, each up to 12 bytes of JSON; see MESSAGE_BYTES_MAX
_WHO = "the host service, or the rank that owns the rows,"


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
                return HostServiceError(f"{_WHO} failed: {message}")
            return kind(message)
    return HostServiceError(f"{_WHO} failed and did not say why")
