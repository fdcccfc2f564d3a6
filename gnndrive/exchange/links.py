"""`Link`: the connection between two ranks of an exchange, over TCP.

torch.distributed tells the ranks where each listens (`Meeting`); gloo's own messages would not do,
because a wait for one cannot be given up. A thread sends and one receives, so that long messages
delay neither the event loop nor those of the other direction. The receiving thread copies rows into
their batch's memory; it waits for the network alone.

A frame is a head (bytes of the message, whom it is for, bytes behind it), the message
(`host/messages.py`), and for ANNOUNCE row numbers, for READY rows, for SLOTS numbers of slots, for
ANNOUNCE and FORESEE codes of next uses. An empty frame says that the sender is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.interrupts import interruptible
from gnndrive.common.limits import named_limit
from gnndrive.common.records import Codes
from gnndrive.exchange.exchanged_buffer import Arriving
from gnndrive.exchange.share import NOTHING, Asked
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message

_HEAD = struct.Struct("<IIq")  # bytes of the message, `OWNER` or `ASKER`, bytes behind it
_RANK = struct.Struct("<i")
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
ASKER, OWNER = 0, 1  # whom a message is for: who owns rows, or who asks for them
PIECE_BYTES = 4 << 20  # that arrive before their rows land
SIGNS = 4  # of life, in the time after which a rank without one is lost
GOODBYE_S = 5.0  # how long a rank that does not answer is waited for at the end
TOKEN_BYTES = 16
CONNECT_S = 30.0
ADDRESS = "give GLOO_SOCKET_IFNAME the name of the network interface that reaches the other hosts"

Bytes: TypeAlias = npt.NDArray[np.uint8]
PlacesOf: TypeAlias = Callable[[tuple[int, int]], Sequence[Arriving]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens, and what a rank that connects has to say."""

    host: str
    port: int
    token: bytes


def own_address() -> str:
    """The address of this host by which the other hosts reach it; ConfigError: there is none."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    master = os.environ.get("MASTER_ADDR", "localhost")
    try:
        if name:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)
                return socket.inet_ntoa(found[20:24])
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)  # sends nothing
            return str(sock.getsockname()[0])
    except OSError as error:
        which = f"GLOO_SOCKET_IFNAME={name}" if name else f"MASTER_ADDR={master}"
        raise ConfigError(f"{which} leads to no network interface ({error}): {ADDRESS}") from error


class Meeting:
    """A socket at which other ranks connect to this one; a context manager that closes it, and what
    has connected and is no rank."""

    def __init__(self) -> None:
        self._strangers = set[socket.socket]()
        host = own_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with named_limit():
            self._sock = socket.create_server((host, 0), family=family, backlog=1024)
        self.address = Address(host, self._sock.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *raised: object) -> None:
        for each in (self._sock, *self._strangers):
            each.close()

    def connect(self, rank: int, addresses: Sequence[Address]) -> dict[int, socket.socket]:
        """Connect to the ranks before this one, and let those behind it connect. ConfigError: one
        cannot be reached."""
        found = dict[int, socket.socket]()
        with contextlib.ExitStack() as undo:
            for other, address in enumerate(addresses[:rank]):
                try:
                    with interruptible():
                        sock = socket.create_connection((address.host, address.port), CONNECT_S)
                except OSError as error:
                    raise ConfigError(
                        f"rank {other} at {address.host}, port {address.port}, cannot be reached "
                        f"({error}): {ADDRESS}, and let the hosts connect to each other"
                    ) from error
                undo.callback(sock.close)
                sock.sendall(address.token + _RANK.pack(rank))
                found[other] = sock
            selector = undo.enter_context(selectors.DefaultSelector())
            selector.register(self._sock, selectors.EVENT_READ)
            until = monotonic() + CONNECT_S
            while missing := sorted(set(range(len(addresses))) - {rank, *found}):
                with interruptible():
                    ready = selector.select(max(until - monotonic(), 0))
                if not ready or monotonic() > until:
                    raise ConfigError(
                        f"ranks {missing} cannot reach rank {rank} at {self.address.host}, port "
                        f"{self.address.port}: {ADDRESS}, and let the hosts connect to each other"
                    )
                for key, _ in ready:
                    if key.fileobj is self._sock:
                        selector.register(self._accept(), selectors.EVENT_READ)
                        continue
                    selector.unregister(key.fileobj)
                    coming: Any = key.fileobj
                    self._strangers.discard(coming)
                    undo.callback(coming.close)
                    behind = _introduced(coming, self.address.token)
                    if behind in missing:
                        found[behind] = coming
                    else:
                        coming.close()
            selector.close()
            undo.pop_all()
        for sock in found.values():
            sock.settimeout(None)
            _open.add(sock)
        return found

    def _accept(self) -> socket.socket:
        """Accept a connection. It becomes readable when the token and the rank have come, so a
        process that connects and sends nothing keeps no rank waiting."""
        sock, _ = self._sock.accept()
        self._strangers.add(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, TOKEN_BYTES + _RANK.size)
        return sock


# A forked child does not have them, so that they end with this process.
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for sock in list(_open):
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)


def _introduced(sock: socket.socket, token: bytes) -> int:
    """Which rank has connected; −1: it is none of this loader's."""
    said = b""
    with contextlib.suppress(OSError):
        said = sock.recv(TOKEN_BYTES + _RANK.size)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if len(said) < TOKEN_BYTES + _RANK.size or not hmac.compare_digest(said[:TOKEN_BYTES], token):
        return -1
    return int(_RANK.unpack_from(said, TOKEN_BYTES)[0])


class LinkError(Exception):
    """The other rank has broken the protocol, or has not given a sign of life in time."""


class Link:
    """A connection to another rank; `start` it, and end it with `aclose` or `abort`.

    Args:
        timeout_s: after how long without a sign of life the rank is lost.
        ids_max: the most row numbers of a batch.
        wide: whether these are int64, else int32.
        tables: the names of the tables.
        foreseen: of those whose next uses ranks know, how many rows this rank owns.
        places_of: where the rows of a batch go, in any thread; see `ExchangedBuffer.places_of`.
        receive: gets a message in the event loop: whether it is for the owner of rows, the message,
            and what comes with it.
        ended: gets in the event loop why the connection has ended; None: by a goodbye.

    Attributes:
        blamed: because of which rank the other one has said goodbye; −1: of none.
    """

    blamed = -1

    def __init__(
        self, sock: socket.socket, rank: int, timeout_s: float, ids_max: int, wide: bool,
        tables: Sequence[str], foreseen: Mapping[str, int], places_of: PlacesOf,
        receive: Callable[[bool, Message, Asked], object],
        ended: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        self._sock, self._timeout_s, self._ids_max = sock, timeout_s, ids_max
        self._dtype = np.dtype(np.int64 if wide else np.int32)
        self._tables, self._foreseen, self._places_of = tuple(tables), dict(foreseen), places_of
        self._receive, self._ended = receive, ended
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[tuple[int, Message, Sequence[Bytes]] | None] = SimpleQueue()
        self._closing, self._goodbye = False, False
        self._why: Exception | None = None
        # Not `settimeout`, which would limit how long sending may take, too.
        whole, part = divmod(timeout_s, 1)
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(whole), int(part * 1e6))
        )
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._piece = np.frombuffer(private_map(PIECE_BYTES, huge=True), np.uint8)
        self._received, self._sent = asyncio.Event(), asyncio.Event()  # all: the thread ends
        self._threads = [
            threading.Thread(target=target, name=f"gnndrive-{name}-{rank}", daemon=True)
            for name, target in (("send", self._send_all), ("receive", self._receive_all))
        ]

    def start(self) -> None:
        """Start the threads; ConfigError: the system refuses."""
        with named_limit():
            for thread in self._threads:
                thread.start()

    # ---- sending ----

    def ask(self, message: Message, asked: Asked) -> None:
        """Send the owner a message, and what comes with it."""
        behind: list[npt.NDArray[Any]] = [*asked.codes]
        if message.kind is Kind.ANNOUNCE:
            counts = np.array([len(each) for each in asked.rows], np.int64)
            behind = [counts, *(each.astype(self._dtype) for each in asked.rows), *behind]
        behind = [each.view(np.uint8) for each in behind]
        self._waiting.put((OWNER, message, behind))

    def answer(self, message: Message, rows: Sequence[torch.Tensor]) -> None:
        """Send the asking rank a message, with a batch's rows if they are ready, or their slots."""
        behind = [each.numpy().reshape(-1).view(np.uint8) for each in rows]
        self._waiting.put((ASKER, message, behind))

    def _send_all(self) -> None:
        alive = _HEAD.pack(0, 0, 0)
        try:
            while True:
                try:
                    item = self._waiting.get(timeout=self._timeout_s / SIGNS)
                except Empty:
                    self._sock.sendall(alive)
                    continue
                if item is None:
                    break
                whom, message, behind = item
                data, nbytes = message.encode(), sum(len(each) for each in behind)
                self._sock.sendall(_HEAD.pack(len(data), whom, nbytes) + data)
                for each in behind:
                    self._sock.sendall(each.data)
                del item, message, behind  # keep no rows alive while waiting
            self._sock.shutdown(socket.SHUT_WR)
        except Exception:
            self.abort()  # so that the other thread ends
        self._call_in_loop(self._sent.set)

    # ---- receiving ----

    def _receive_all(self) -> None:
        try:
            while self._receive_one():
                pass
            self._why = self._why or LinkError("the connection was closed")
        except Exception as error:  # whatever it is: both ranks wait for what would have arrived
            self.abort(error)
        self._call_in_loop(self._ended, None if self._goodbye else self._why)
        self._call_in_loop(self._waiting.put, None)  # then: the other may free what this one used
        self._call_in_loop(self._received.set)

    def _receive_one(self) -> bool:
        """Receive a frame; False: the rank sends no more."""
        head = bytearray(_HEAD.size)
        if not self._fill(memoryview(head), may_end=True):
            return False
        length, whom, nbytes = _HEAD.unpack(head)
        if not length:
            return True
        if length > MESSAGE_BYTES_MAX or whom not in (OWNER, ASKER):
            raise LinkError("a frame makes no sense")
        data = bytearray(length)
        self._fill(memoryview(data))
        message, asked = Message.decode(bytes(data)), NOTHING
        if whom == OWNER and message.kind is Kind.ANNOUNCE:
            asked = self._receive_batch(nbytes)
        elif whom == OWNER and message.kind is Kind.FORESEE:
            asked = Asked((), self._receive_codes(nbytes, self._foreseen))
        elif whom == ASKER and message.kind is Kind.READY:
            self._receive_rows((message.epoch, message.step), nbytes)
        elif whom == ASKER and message.kind is Kind.SLOTS:
            asked = self._receive_slots((message.epoch, message.step), nbytes)
        elif nbytes:
            raise LinkError(f"{message.kind.name} has {nbytes:,} bytes too many")
        if message.kind is Kind.BYE:
            self._goodbye, self.blamed = True, message.a
            return True  # the rank closes its end when this one is closed
        self._call_in_loop(self._receive, whom == OWNER, message, asked)
        return True

    def _receive_batch(self, nbytes: int) -> Asked:
        counts, size = np.empty(len(self._tables), np.int64), self._dtype.itemsize
        if nbytes < counts.nbytes:
            raise LinkError(f"a batch has {nbytes:,} bytes of row numbers")
        self._fill(counts.data.cast("B"))
        nbytes -= counts.nbytes
        if (
            counts.min(initial=0) < 0
            or counts.sum() > self._ids_max
            or counts.sum() * size > nbytes
        ):
            raise LinkError(f"a batch of {counts.tolist()} rows has {nbytes:,} bytes of them")
        ids = np.empty(counts.sum(), self._dtype)
        self._fill(ids.view(np.uint8).data)
        rows = [each.astype(np.int64) for each in np.split(ids, np.cumsum(counts)[:-1])]
        by_table, left = dict(zip(self._tables, counts.tolist(), strict=True)), nbytes - ids.nbytes
        codes = self._receive_codes(left, {n: by_table[n] for n in self._foreseen} if left else {})
        return Asked(rows, codes)

    def _receive_codes(self, nbytes: int, counts: Mapping[str, int]) -> Sequence[Codes]:
        codes = [np.empty(count, np.uint16) for count in counts.values()]
        if nbytes != sum(each.nbytes for each in codes):
            raise LinkError(f"next uses of {dict(counts)} rows have {nbytes:,} bytes")
        for each in codes:
            self._fill(each.view(np.uint8).data)
        return codes

    def _arriving(self, key: tuple[int, int]) -> Sequence[Arriving]:
        try:
            return self._places_of(key)
        except KeyError:
            raise LinkError(f"rows of batch {key} arrive, which was not asked for") from None

    def _receive_slots(self, key: tuple[int, int], nbytes: int) -> Asked:
        arriving = [each for each in self._arriving(key) if each.pulled]
        slots = [np.empty(len(each.places), np.int32) for each in arriving]
        if nbytes != sum(each.nbytes for each in slots):
            raise LinkError(f"batch {key} has {nbytes:,} bytes of slots")
        for each in slots:
            self._fill(each.view(np.uint8).data)
        return Asked((), slots=slots)

    def _receive_rows(self, key: tuple[int, int], nbytes: int) -> None:
        arriving = [each for each in self._arriving(key) if not each.pulled]
        if nbytes != sum(len(each.places) * each.rows.shape[1] for each in arriving):
            raise LinkError(f"batch {key} has {nbytes:,} bytes of rows")
        for each in arriving:
            row_bytes, count = each.rows.shape[1], len(each.places)
            most = max(PIECE_BYTES // max(row_bytes, 1), 1)
            for begin in range(0, count, most):
                size = min(most, count - begin) * row_bytes
                piece = self._piece[:size] if size <= PIECE_BYTES else np.empty(size, np.uint8)
                self._fill(piece.data)
                each.land(begin, piece)

    def _fill(self, memory: memoryview, may_end: bool = False) -> bool:
        """Fill memory with what arrives; False: the connection has ended before, if it may."""
        filled = 0
        while filled < len(memory):
            try:
                count = self._sock.recv_into(memory[filled:])
            except BlockingIOError:
                raise LinkError(f"no sign of life for {self._timeout_s:g} s") from None
            if not count:
                if may_end and not filled:
                    return False
                raise LinkError("the connection was closed in the middle of a message")
            filled += count
        return True

    def _call_in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    # ---- the end ----

    def say_goodbye(self, blamed: int = -1) -> None:
        """Tell the other rank that this one leaves, and because of which rank, if it is not −1; it
        may send what it has begun."""
        if not self._closing:
            self._closing = True
            self._waiting.put((OWNER, Message(Kind.BYE, a=blamed), ()))
            self._waiting.put(None)

    async def aclose(self) -> None:
        """Say goodbye, wait shortly for the other rank's, and end the threads."""
        self.say_goodbye()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._received.wait()
        self.abort()
        for ended, thread in zip((self._sent, self._received), self._threads, strict=True):
            await ended.wait()  # no executor's threads, which Python ends before its exit handlers
            thread.join()
        self._sock.close()

    def abort(self, why: Exception | None = None) -> None:
        """End the connection at once; `ended` gets `why`, if that is known."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
