"""Messages survive the wire, and whatever is none is refused. Errors travel in them."""

from __future__ import annotations

import errno
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.errors import (
    BatchTooLarge,
    ClosedError,
    ConfigError,
    HostServiceError,
    PeerError,
    ReadError,
    StoreError,
)
from gnndrive.host.error_text import error_from, error_text
from gnndrive.host.messages import MESSAGE_BYTES_MAX, WITH_TEXT, Kind, Message, ProtocolError

HEAD_BYTES = 32
NUMBER = st.integers(-(2**63), 2**63 - 1)
ANY = st.text('ax"\\ü\0\ud800\U0001f600', max_size=5)
TEXT = st.dictionaries(ANY, st.integers() | ANY | st.none(), max_size=3)


@settings(max_examples=30)
@given(st.sampled_from(list(Kind)), st.integers(0, 2**32 - 1), NUMBER, NUMBER, NUMBER, TEXT)
def test_a_message_survives_the_wire(kind, epoch, step, a, b, text):
    message = Message(kind, epoch, step, a, b, text if kind in WITH_TEXT else {})
    assert Message.decode(message.encode()) == message
    assert kind in WITH_TEXT or len(message.encode()) == HEAD_BYTES


def head(kind: int, zero: int = 0) -> bytes:
    return struct.pack("<HHIqqq", kind, zero, 0, 0, 0, 0)


MALFORMED = {
    "half a head": head(Kind.JOIN)[:31],
    "no such kind": head(0),
    "not zero where zero belongs": head(Kind.JOIN, 1),
    "a byte too many": head(Kind.JOIN) + b"x",
    "no text": head(Kind.HELLO),
    "half a text": head(Kind.HELLO) + b'{"a": 1',
    "a list": head(Kind.FAILED) + b"[]",
    "no UTF-8": head(Kind.HELLO) + b'{"a": "\xff"}',
    "lists without end": head(Kind.HELLO) + b"[" * 100_000,
    "a number without end": head(Kind.HELLO) + b'{"a": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_datagram_is_refused(data):
    with pytest.raises(ProtocolError):
        Message.decode(data)


@settings(max_examples=30)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        message = Message.decode(data)
    except ProtocolError:
        return
    assert Message.decode(message.encode()) == message


def test_a_text_that_no_datagram_holds_is_refused():
    def message(length):
        return Message(Kind.FAILED, text={"a": "x" * length})

    room = MESSAGE_BYTES_MAX - HEAD_BYTES - len(json.dumps({"a": ""}))
    assert len(message(room).encode()) == MESSAGE_BYTES_MAX
    with pytest.raises(ProtocolError, match="too long"):
        message(room + 1).encode()


# ---- errors, as a rank gets them

FAILED = "the host service failed: "
GROUP = ExceptionGroup("inner", [ConfigError("first"), ValueError("second")])


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        *(
            (each('give it at least buffer="5MB"'), each, 'give it at least buffer="5MB"')
            for each in (ConfigError, StoreError, IndexError, MemoryError, ClosedError)
        ),
        (ValueError("odd"), HostServiceError, f"{FAILED}ValueError('odd')"),
        (BatchTooLarge("odd"), HostServiceError, f"{FAILED}odd"),
        (PeerError(3), HostServiceError, f"{FAILED}{PeerError(3)}"),
        (BaseExceptionGroup("outer", [GROUP, KeyboardInterrupt()]), ConfigError, "first"),
    ],
)
def test_an_error_comes_as_it_is_or_as_one_of_the_service(error, kind, said):
    got = travelled(error)
    assert (type(got), str(got)) == (kind, said)


def travelled(error: BaseException) -> Exception:
    data = Message(Kind.FAILED, text=error_text(error)).encode()
    return error_from(Message.decode(data).text)


def test_a_read_error_says_where_and_why():
    for path, offset, code in (
        ("/data/\udcff.npy", 0, errno.ENOMEM), ("/data/ü\U0001f600", 1 << 45, errno.ECANCELED),
        ("/" + "x/" * 2047, 0, 4095),
    ):  # fmt: skip
        error = ReadError(path, offset, code)
        got = travelled(error)
        assert isinstance(got, ReadError)
        assert (got.path, got.offset, got.errno, str(got)) == (path, offset, code, str(error))


def test_a_long_text_is_cut_so_that_a_message_holds_it():
    for character in ("x", '"', "ü", "\U0001f600", "\udcff", "\0"):
        got = travelled(ConfigError(character * 100_000))
        assert (type(got), set(str(got))) == (ConfigError, {character})


def test_a_text_that_says_nothing_is_an_error_of_the_service():
    for text in (
        {}, {"error": "ConfigError"}, {"error": 1, "message": "m"}, {"message": "m"}, {"read": []},
        {"read": ["p", "1", 5]}, {"read": ["p", 0, -1]}, {"read": ["p", 0, 2**80]},
        {"read": {"path": "p"}}, {"error": "SystemExit", "message": "m"},
    ):  # fmt: skip
        assert type(error_from(text)) is HostServiceError
