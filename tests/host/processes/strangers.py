"""Clients of a host service that do not keep to the protocol, and what ranks and they do together
in `test_ranks.py`."""

from __future__ import annotations

import copy
import ctypes
import fcntl
import json
import mmap
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

import gnndrive
from gnndrive import Store
from gnndrive.host.arena import Arena
from gnndrive.host.connection import Connection
from gnndrive.host.hello import Hello, Welcome
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message
from gnndrive.host.wire import abstract_name, new_socket
from tests.host.processes.programs import SMALL, Rank, digest, loader

NOBODY = 65534
LIMIT_S = 60  # against a service that does not answer
JUNK = (
    0, 1, -1, 2, 3, 7, 4095, 1 << 16, 1 << 31, 1 << 40, 1 << 62, 1 << 63, 1 << 80, True, None, 1.5,
    "", "x", "\ud800", "../../etc/passwd", [], [0], {}, {"x": 1}, "x" * 3000,
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 5, 1 << 20, -1, 1 << 31, (1 << 63) - 1, -(1 << 63))


class Stranger:
    """A client of a service that sends what it is told to; `fds` have arrived."""

    def __init__(self, name: str) -> None:
        self.sock, self.fds = new_socket(), list[int]()
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(abstract_name(name))

    def send(self, data: bytes) -> bool:
        """Send bytes as one message; False: the service has disconnected this client."""
        try:
            self.sock.send(data)
        except (ConnectionError, BrokenPipeError):
            return False
        return True

    def say(self, kind: Kind, step: int = 0, a: int = 0, b: int = 0, **text: Any) -> bool:
        """Send a message of epoch 0."""
        return self.send(Message(kind, 0, step, a, b, text).encode())

    def receive(self) -> Message | None:
        """The service's next message; None: it has disconnected this client."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MESSAGE_BYTES_MAX, 253)
        except ConnectionError:
            return None
        self.fds += fds
        return Message.decode(data) if data else None

    def close(self) -> None:
        """Leave without a word."""
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())

    def enter(self, hello: Hello, store: Store) -> Arena:
        """Say a hello, and map the arena that comes with the welcome."""
        self.say(Kind.HELLO, **hello.to_json())
        message = self.receive()
        assert message is not None
        assert message.kind is Kind.WELCOME, message.text
        shape = hello.buffer.arena_shape(store)
        assert Welcome.from_json(message.text).slots == hello.buffer.slots
        return Arena(shape, np.frombuffer(mmap.mmap(self.fds[-1], shape.nbytes), np.uint8))


def of_one(hello: Hello) -> Hello:
    """The same needs as those of `hello`, for a new group of one rank."""
    return replace(hello, group=secrets.token_hex(8), rank=0, ranks=(0,), name="one")


def mutated(value: Any, draw: random.Random) -> Any:
    """A JSON value in which one thing is another."""
    if isinstance(value, dict | list) and value and draw.random() < 0.9:
        made = copy.copy(value)
        place = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                del made[place]
            case 1 if isinstance(made, dict):
                made[draw.choice(("x", "rank", "tables"))] = draw.choice(JUNK)
            case 2 if isinstance(made, list):
                made.append(draw.choice(JUNK))
            case _:
                made[place] = mutated(value[place], draw)
        return made
    return draw.choice(JUNK)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes of which some are missing, others or too many."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    match draw.randrange(4):
        case 0:
            return bytes(changed[: draw.randrange(len(changed) + 1)])
        case 1:
            return bytes(changed) + draw.randbytes(draw.choice((1, 8, 70_000)))
    return bytes(changed)


def attack(name: str, hello: Hello, store: Store, seed: int, sessions: int) -> Mapping[str, int]:
    """Connect again and again, and send messages of all kinds, among them many that make no sense;
    returns how many messages were sent, and were answered by a welcome."""
    draw, open_ones = random.Random(seed), list[Stranger]()
    counted = {"sent": 0, "welcome": 0}
    for _ in range(sessions):
        stranger = Stranger(name)
        open_ones.append(stranger)
        _attack_once(stranger, hello, store, draw, counted)
        while len(open_ones) > draw.randint(0, 20):
            open_ones.pop(draw.randrange(len(open_ones))).close()
    for stranger in open_ones:
        stranger.close()
    return counted


def _attack_once(
    stranger: Stranger, hello: Hello, store: Store, draw: random.Random, counted: dict[str, int]
) -> None:
    own, arena = of_one(hello), None
    texts = own.to_json() if draw.random() < 0.8 else hello.to_json()
    first = json.dumps(mutated(texts, draw) if draw.random() < 0.5 else texts)
    head = Message(Kind.HELLO).encode()[:32]
    match draw.randrange(6):
        case 0:  # before any hello
            pass
        case 1:
            counted["sent"] += stranger.send(damaged(head + first.encode(), draw))
        case _:
            counted["sent"] += stranger.send(head + first.encode())
            answer = stranger.receive()
            if answer is None or answer.kind is not Kind.WELCOME:
                return
            counted["welcome"] += 1
            if answer.text["slots"]:  # then an arena comes last
                memory = mmap.mmap(stranger.fds[-1], 0)
                memory[:] = draw.randbytes(1 << 12) * (len(memory) >> 12)
                if texts["group"] == own.group and own.buffer is not None:
                    shape = own.buffer.arena_shape(store)
                    if len(memory) >= shape.nbytes:
                        arena = Arena(shape, np.frombuffer(memory, np.uint8))
    for _ in range(draw.randint(0, 30)):
        if not _send_anything(stranger, arena, draw):
            return
        counted["sent"] += 1


def _send_anything(stranger: Stranger, arena: Arena | None, draw: random.Random) -> bool:
    """Send a message that may make no sense; `test_fuzz.py` does that to a group more cleverly."""
    step, place, b = draw.randrange(4), draw.randrange(4), 0
    if arena is not None and draw.random() < 0.7:
        rows = np.array(draw.choices((0, 1, 2, 3, 300, -1, 1 << 30), k=5), np.int64)
        arena.write_rows(place, [rows for _ in arena.shape.rows_max])
    kind = draw.choice([kind for kind in Kind if kind is not Kind.BYE] + [Kind.ANNOUNCE] * 9)
    if draw.random() < 0.1:
        step, place, b = (draw.choice(NUMBERS) for _ in range(3))
    data = Message(kind, draw.choice((0, 0, 0, 1, 7)), step, place, b, {"x": 1}).encode()
    return stranger.send(damaged(data, draw) if draw.random() < 0.03 else data)


# ---- programs


def among_honest_ranks(rank: Rank, store: str, seed: int, sessions: int) -> dict[str, Any]:
    """Two ranks load epochs, while the third rank attacks their service."""
    group = dist.new_group([0, 1])
    opened = gnndrive.open(store)
    if rank.number == 2:
        name, texts = rank.everyone(None)[0]
        hello = Hello.from_json(texts)
        counted = attack(name, hello, opened, seed, sessions)
        rank.everyone(None)
        with closing(Stranger(name)) as stranger:
            stranger.enter(of_one(hello), opened)
            found = {"refused": writes_refused(stranger.fds), "let in": lets_in_others(name)}
        rank.everyone(None)
        return {**counted, **found}
    batches, connect, seen = [], Connection.__init__, list[Any]()

    def note(connection: Connection, address: str, hello: Hello) -> None:
        seen.append((address, hello.to_json()))
        connect(connection, address, hello)

    with patch.object(Connection, "__init__", note), loader(opened, ranks=group, **SMALL) as made:
        iterator = iter(made)
        rank.everyone(seen[0])
        batches.append([digest(batch) for batch in iterator])
        batches.append([digest(batch) for batch in made])
        rank.everyone(None)
        rank.everyone(None)  # the service lives until then
    return {"batches": batches}


def writes_refused(fds: list[int]) -> list[bool]:
    """Of each memory, whether every way to write into it is refused; to cut it off always is."""
    refused = []
    for fd in fds:
        assert _denied(lambda fd=fd: os.ftruncate(fd, 0))
        assert _denied(lambda fd=fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE))
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        ways = [
            _denied(lambda each=each: mmap.mmap(each, 1, prot=mmap.PROT_WRITE | mmap.PROT_READ))
            for each in (fd, again)
        ]
        ways += [_denied(lambda each=each: os.pwrite(each, b"x", 0)) for each in (fd, again)]
        ways.append(_denied(lambda fd=fd: _punch(fd)))
        os.close(again)
        assert len(set(ways)) == 1, ways
        refused.append(ways[0])
    return refused


def lets_in_others(name: str) -> bool:
    """Whether a process of another user is let in; of this one, if this is not root."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setuid(NOBODY)
        stranger = Stranger(name)
        stranger.say(Kind.HELLO)
        os._exit(1 if stranger.receive() is None else 0)
    finally:
        os._exit(2)


def _denied(write: Callable[[], object]) -> bool:
    try:
        write()
    except PermissionError:
        return True
    return False


def _punch(fd: int) -> None:
    keep_size, punch_hole = 1, 2
    if ctypes.CDLL(None, use_errno=True).fallocate(
        fd, keep_size | punch_hole, ctypes.c_int64(0), ctypes.c_int64(4096)
    ):
        raise OSError(ctypes.get_errno(), "fallocate")
