"""Clients of a host service that do not keep to the protocol."""

from __future__ import annotations

import copy
import json
import os
import random
import secrets
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

from gnndrive.host.hello import Hello, Welcome
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message
from gnndrive.host.wire import abstract_name, new_socket

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
        except ConnectionError:
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

    def enter(self, hello: Hello) -> None:
        """Say a hello, and wait for the welcome."""
        self.say(Kind.HELLO, **hello.to_json())
        message = self.receive()
        assert message is not None
        assert message.kind is Kind.WELCOME, message.text
        assert Welcome.from_json(message.text).slots == hello.buffer.slots


def of_one(hello: Hello) -> Hello:
    """The same needs as those of `hello`, for a new group of one rank."""
    return replace(hello, group=secrets.token_hex(8), rank=0, ranks=(0,), name="one")


def attack(name: str, hello: Hello, seed: int, sessions: int) -> Counter[str]:
    """Connect again and again, and send messages of all kinds, among them many that make no sense;
    returns how many messages were "sent", and were answered by a "welcome"."""
    draw, open_ones, counted = random.Random(seed), list[Stranger](), Counter[str]()
    for _ in range(sessions):
        stranger = Stranger(name)
        open_ones.append(stranger)
        _attack_once(stranger, of_one(hello).to_json(), draw, counted)
        while len(open_ones) > draw.randint(0, 20):
            open_ones.pop(draw.randrange(len(open_ones))).close()
    for stranger in open_ones:
        stranger.close()
    return counted


def _attack_once(
    stranger: Stranger, hello: dict[str, Any], draw: random.Random, counted: Counter[str]
) -> None:
    case = draw.randrange(6)
    text = json.dumps(_mutated(hello, draw) if draw.random() < 0.5 else hello)
    data = Message(Kind.HELLO).encode()[:32] + text.encode()
    if case:  # else messages come before any hello
        counted["sent"] += stranger.send(_damaged(data, draw) if case == 1 else data)
    if case > 1:
        answer = stranger.receive()
        if answer is None or answer.kind is not Kind.WELCOME:
            return
        counted["welcome"] += 1
    for _ in range(draw.randint(0, 30)):  # `test_fuzz.py` does that to a group more cleverly
        numbers = [draw.randrange(4), draw.randrange(4), 0]
        if draw.random() < 0.1:
            numbers = draw.choices(NUMBERS, k=3)
        kind = draw.choice([kind for kind in Kind if kind is not Kind.BYE] + [Kind.ANNOUNCE] * 9)
        data = Message(kind, draw.choice((0, 0, 0, 1, 7)), *numbers, {"x": 1}).encode()
        if not stranger.send(_damaged(data, draw) if draw.random() < 0.03 else data):
            return
        counted["sent"] += 1


def _mutated(value: Any, draw: random.Random) -> Any:
    """A JSON value in which one thing is another."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return draw.choice(JUNK)
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
            made[place] = _mutated(value[place], draw)
    return made


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes of which some are missing, others or too many."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    cut, more = draw.randrange(len(changed) + 1), draw.randbytes(draw.choice((1, 8, 70_000)))
    return bytes(draw.choice((changed[:cut], changed + more, changed, changed)))
