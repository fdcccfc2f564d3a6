"""What travels between ranks and a service: messages, errors and reports, and row ids in an arena;
whatever is none is refused. And what a service promises of its memory."""

import asyncio
import errno
import json
import struct
from typing import Any

import numpy as np
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
from gnndrive.host.arena import COUNTERS, PAGE, Arena, ArenaShape
from gnndrive.host.budget import NAMED_MAX, Budget
from gnndrive.host.messages import (
    MESSAGE_BYTES_MAX,
    WITH_TEXT,
    Kind,
    Message,
    ProtocolError,
    error_from,
    error_text,
)
from gnndrive.host.report import PAGE_CLIENTS, ClientReport, ServiceReport

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


def test_a_text_that_no_datagram_holds_is_refused():
    def message(length):
        return Message(Kind.FAILED, text={"a": "x" * length})

    room = MESSAGE_BYTES_MAX - HEAD_BYTES - len(json.dumps({"a": ""}))
    assert len(message(room).encode()) == MESSAGE_BYTES_MAX
    with pytest.raises(ProtocolError, match="too long"):
        message(room + 1).encode()


# ---- errors, as a rank gets them

FAILED = "the host service, or the rank that owns the rows, failed: "
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


# ---- reports

CLIENT = ClientReport(7, "train.py", 3, 1, 2, 1 << 40, 12, 1 << 41, 0.5)
REPORT = ServiceReport(
    "/data/x.gnn", "ab", 5, False, 1000, 600, {"resident": 90}, 2, 17, (CLIENT, CLIENT)
)


def sent(report: ServiceReport) -> Any:
    return json.loads(json.dumps(report.to_json()))


def test_the_largest_page_fits_a_message_and_arrives_as_it_was():
    client = ClientReport(1 << 31, "\N{SLEEPING FACE}" * 100, *[1 << 50] * 6, 1e-300 / 3)
    report = ServiceReport(
        "\udcff" * 4096, "f" * 64, 1 << 31, False, 1 << 60, 1 << 60, {"x" * 50: 1 << 60}, 1.0,
        1 << 31, (client,) * PAGE_CLIENTS,
    )  # fmt: skip
    message = Message(Kind.REPORT, text=report.to_json()).encode()
    assert len(message) <= MESSAGE_BYTES_MAX
    assert ServiceReport.from_json(Message.decode(message).text) == report
    unlimited = ServiceReport("/x", "ab", 5, True, None, 600, {}, 2.5, 0, ())
    assert ServiceReport.from_json(sent(unlimited)) == unlimited
    assert (REPORT.left, unlimited.left) == (400, None)


FINE = {"memory": type(None), "path": str, "identity": str, "time_s": float, "draining": bool}


def test_a_wrong_value_is_refused():
    text, wrong = sent(REPORT), []
    for name in text.keys() - {"protocol"}:
        values = [None, "1", -1.5, [1], {"a": "b"}, True]
        wrong += [{name: each} for each in values if not isinstance(each, FINE.get(name, ()))]
    for name in text["clients"][0]:
        wrong.append({"clients": [text["clients"][0] | {name: None}]})
    for each in wrong:
        with pytest.raises(ProtocolError):
            ServiceReport.from_json(text | each)
    del text["path"]
    with pytest.raises(ProtocolError):
        ServiceReport.from_json(text)
    with pytest.raises(ConfigError, match="run both with one version of gnndrive"):
        ServiceReport.from_json(text | {"protocol": 0})


# ---- a service's memory


async def test_an_error_says_what_is_left_and_who_has_the_rest():
    budget = Budget(30_000)
    await budget.take(0, "small", 5_000)
    await budget.take(1, "large", 15_000)
    with pytest.raises(ConfigError) as raised:
        await budget.take(2, "new", 10_001)
    said = "new needs 10.001 KB of the service, which has 10 KB of --memory 30 KB left: "
    assert f"{said}large has 15 KB, small has 5 KB. Give the loader less" in str(raised.value)
    await budget.take(2, "new", 10_000)
    many = Budget(1_000)
    for number in range(NAMED_MAX + 2):
        await many.take(number, f"job {number}", 100 - number)
    with pytest.raises(ConfigError, match=r"job 7 has 93 B, 2 others have 183 B\. Give"):
        await many.take("new", "new", 100)


async def test_memory_that_is_being_freed_is_waited_for():
    budget, freed = Budget(100), asyncio.Event()
    await budget.take("a", "job a", 60)
    await budget.take("b", "job b", 30)

    async def free():
        await freed.wait()
        budget.give("a")

    async def free_nothing():
        budget.give("nobody")

    budget.freed_by(asyncio.create_task(free()))
    budget.freed_by(asyncio.create_task(free_nothing()))
    await budget.take("c", "job c", 10)  # is left
    waiting = asyncio.create_task(budget.take("d", "job d", 60))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    freed.set()
    await waiting
    with pytest.raises(ConfigError, match="job e needs 1 B"):
        await budget.take("e", "job e", 1)
    for _ in range(2):
        budget.give("d")
    assert budget.used == 40


# ---- arenas

SHAPES = [
    ArenaShape(1, (0,)), ArenaShape(3, (7,)), ArenaShape(4, (5, 1, 600)), ArenaShape(2, ()),
    ArenaShape(4, (5, 1, 600), wide=True), ArenaShape(3, (339, 339, 339)),
]  # fmt: skip


def arena_of(shape: ArenaShape, more: int = 0) -> Arena:
    return Arena(shape, np.zeros(shape.nbytes + more, np.uint8))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_place_touches_another(shape):
    """Write every number of every part once, and read all of them back; then aliases over ids."""
    arena, draw = arena_of(shape), np.random.default_rng(0)
    arena.counters[:] = np.arange(len(COUNTERS))
    rows, aliases = {}, {}
    ids = 2**63 - 1 if shape.wide else 2**31 - 1
    for place in range(shape.places):
        rows[place] = [draw.integers(0, ids, most) for most in shape.rows_max]
        arena.write_rows(place, rows[place])
    assert arena.counters.tolist() == list(range(len(COUNTERS)))
    for place in range(shape.places):
        for got, written in zip(arena.read_rows(place), rows[place], strict=True):
            assert np.array_equal(got, written)
        for table, most in enumerate(shape.rows_max):
            aliases[place, table] = draw.integers(-(2**31), 2**31 - 1, most).astype(np.int32)
            arena.alias(place, table, most)[:] = aliases[place, table]
    for (place, table), alias in aliases.items():
        assert np.array_equal(arena.alias(place, table, len(alias)), alias)


@pytest.mark.parametrize("wide", [False, True])
def test_an_id_that_no_table_can_have_becomes_none_at_all(wide):
    """Not another row's, which it would be without its upper bits."""
    arena = arena_of(ArenaShape(1, (5,), wide))
    arena.write_rows(0, [np.array([3, -7, 2**31 - 1, 2**31, 2**40 + 3])])
    (read,) = arena.read_rows(0)
    large = [2**31, 2**40 + 3] if wide else [-1, -1]
    assert read.tolist() == [3, -1, 2**31 - 1, *large]


def test_rows_are_copied_and_their_counts_checked():
    """The rank may change them."""
    arena = arena_of(ArenaShape(2, (7, 3)), 2 * PAGE)
    arena.write_rows(1, [np.arange(7), np.arange(3)])
    arena.write_rows(1, [np.array([4, 2]), np.arange(0)])
    read = arena.read_rows(1)
    arena._memory[:] = 255
    assert [each.tolist() for each in read] == [[4, 2], []]
    arena.write_rows(1, read)
    for table, count in ((0, -1), (1, 4), (0, 2**40), (1, -(2**63))):
        counts = arena._counts(1)
        counts[:] = 0
        counts[table] = count
        with pytest.raises(ProtocolError, match="at most"):
            arena.read_rows(1)
