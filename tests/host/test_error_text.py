"""Errors of the host service, as a rank gets them."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
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
from gnndrive.host.messages import Kind, Message


def travelled(error: BaseException) -> Exception:
    data = Message(Kind.FAILED, text=error_text(error)).encode()
    return error_from(Message.decode(data).text)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError('give it at least buffer="5MB"'),
        StoreError("x.npy is damaged"),
        IndexError("a row id of 'x' is out of range"),
        MemoryError("no memory for a landing"),
        ClosedError("the loader was closed"),
    ],
)
def test_an_error_that_a_rank_can_have_comes_as_it_is(error: Exception) -> None:
    got = travelled(error)
    assert type(got) is type(error)
    assert str(got) == str(error)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.ECANCELED, 0, 4095])
def test_a_read_error_says_where_and_why(code: int) -> None:
    error = ReadError("/data/x.npy", 1 << 45, code)
    got = travelled(error)
    assert isinstance(got, ReadError)
    assert (got.path, got.offset, got.errno) == (error.path, error.offset, code)
    assert str(got) == str(error)


@pytest.mark.parametrize("path", ["/data/\udcff.npy", "/data/ü\U0001f600", "/" + "x/" * 2047])
def test_a_read_error_with_any_path(path: str) -> None:
    got = travelled(ReadError(path, 0, errno.EIO))
    assert isinstance(got, ReadError)
    assert got.path == path


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("no such table"), BatchTooLarge("odd"), PeerError(3)]
)
def test_any_other_error_is_one_of_the_service(error: Exception) -> None:
    got = travelled(error)
    assert type(got) is HostServiceError
    assert "the host service failed" in str(got)
    assert str(error) in str(got)


def test_of_a_group_the_first_error_counts() -> None:
    inner = ExceptionGroup("inner", [ConfigError("first"), ValueError("second")])
    got = travelled(BaseExceptionGroup("outer", [inner, KeyboardInterrupt()]))
    assert isinstance(got, ConfigError)
    assert str(got) == "first"


@pytest.mark.parametrize("character", ["x", '"', "ü", "\U0001f600", "\udcff", "\0"])
def test_a_long_text_is_cut_so_that_a_message_holds_it(character: str) -> None:
    got = travelled(ConfigError(character * 100_000))
    assert type(got) is ConfigError
    assert set(str(got)) == {character}


NONSENSE: list[dict[str, Any]] = [
    {}, {"error": "ConfigError"}, {"error": 1, "message": "m"}, {"message": "m"}, {"read": []},
    {"read": ["p", 1]}, {"read": ["p", "1", 5]}, {"read": ["p", 0, -1]}, {"read": ["p", 0, 2**80]},
    {"read": {"path": "p"}}, {"error": "SystemExit", "message": "m"},
]  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE, ids=str)
def test_a_text_that_says_nothing_is_an_error_of_the_service(text: dict[str, Any]) -> None:
    assert type(error_from(text)) is HostServiceError


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["read", "error", "message", "x"]), JSON))
def test_any_text_becomes_an_error(text: dict[str, Any]) -> None:
    assert isinstance(error_from(text), Exception)
