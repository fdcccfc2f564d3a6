"""What a service promises of its memory, and its report on the wire: whole, and refused if anything
in it is wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.host.budget import NAMED_MAX, Budget
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message, ProtocolError
from gnndrive.host.report import PAGE_CLIENTS, ClientReport, ServiceReport

CLIENT = ClientReport(7, "train.py", 3, 1, 2, 1 << 40, 12, 1 << 41, 0.5)
REPORT = ServiceReport(
    "/data/x.gnn", "ab", 5, False, 1000, 600, {"resident": 90}, 2, 17, (CLIENT, CLIENT)
)


async def test_an_error_says_what_is_left_and_who_has_the_rest():
    budget = Budget(30_000)
    await budget.take(0, "small", 5_000)
    await budget.take(1, "large", 15_000)
    with pytest.raises(ConfigError) as raised:
        await budget.take(2, "new", 10_001)
    said = "new needs 10 KB of the service, which has 10 KB of --memory 30 KB left: "
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


# ---- the report


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
