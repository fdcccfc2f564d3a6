"""Messages survive the wire, and whatever is none is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnndrive.host.messages import (
    MESSAGE_BYTES_MAX,
    WITH_TEXT,
    Kind,
    Message,
    ProtocolError,
)
from tests.host.spoken import FROM_RANKS

HEAD_BYTES = 32
NUMBER = st.integers(-(2**63), 2**63 - 1)
TEXT = st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=3)


@given(
    st.sampled_from(list(Kind)), st.integers(0, 2**32 - 1), NUMBER, NUMBER, NUMBER, TEXT,
)  # fmt: skip
def test_a_message_survives_the_wire(
    kind: Kind, epoch: int, step: int, a: int, b: int, text: dict[str, object]
) -> None:
    message = Message(kind, epoch, step, a, b, text if kind in WITH_TEXT else {})
    assert Message.decode(message.encode()) == message


@pytest.mark.parametrize("kind", Kind)
def test_only_messages_with_a_text_are_longer_than_a_head(kind: Kind) -> None:
    data = Message(kind, 1, 2, 3, 4).encode()
    assert len(data) == HEAD_BYTES + (len("{}") if kind in WITH_TEXT else 0)


def test_ranks_send_no_message_of_the_services() -> None:
    assert max(FROM_RANKS) < min(set(Kind) - FROM_RANKS)
    assert {Kind.HELLO, Kind.ANNOUNCE, Kind.JOIN, Kind.RELEASE, Kind.BYE} <= FROM_RANKS
    assert not {Kind.WELCOME, Kind.READY, Kind.LEFT, Kind.BROKEN} & FROM_RANKS


def head(kind: int, zero: int = 0) -> bytes:
    return struct.pack("<HHIqqq", kind, zero, 0, 0, 0, 0)


DEEP = b"[" * 100_000
MALFORMED = {
    "nothing": b"",
    "half a head": head(Kind.JOIN)[:31],
    "no such kind": head(0),
    "a kind of a later version": head(1000),
    "not zero where zero belongs": head(Kind.JOIN, 1),
    "a byte too many": head(Kind.JOIN) + b"x",
    "no text": head(Kind.HELLO),
    "half a text": head(Kind.HELLO) + b'{"a": 1',
    "a list": head(Kind.FAILED) + b"[]",
    "a number": head(Kind.FAILED) + b"7",
    "null": head(Kind.BROKEN) + b"null",
    "two texts": head(Kind.HELLO) + b"{}{}",
    "no UTF-8": head(Kind.HELLO) + b'{"a": "\xff"}',
    "lists without end": head(Kind.HELLO) + DEEP,
    "objects without end": head(Kind.HELLO) + b'{"a":' * 10_000,
    "a number without end": head(Kind.HELLO) + b'{"a": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_datagram_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Message.decode(data)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = Message.decode(data)
    except ProtocolError:
        return
    assert Message.decode(message.encode()) == message


def test_a_text_that_no_datagram_holds_is_refused() -> None:
    def message(length: int) -> Message:
        return Message(Kind.FAILED, text={"a": "x" * length})

    room = MESSAGE_BYTES_MAX - HEAD_BYTES - len(json.dumps({"a": ""}))
    assert len(message(room).encode()) == MESSAGE_BYTES_MAX
    with pytest.raises(ProtocolError, match="too long"):
        message(room + 1).encode()
