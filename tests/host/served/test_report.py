"""A service's report on the wire: whole, in pages, and refused if anything in it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnndrive import ConfigError
from gnndrive.host.messages import MESSAGE_BYTES_MAX, Kind, Message, ProtocolError
from gnndrive.host.report import PAGE_CLIENTS, ClientReport, ServiceReport

CLIENT = ClientReport(7, "train.py", 3, 1, 2, 1 << 40, 12, 1 << 41, 0.5)
REPORT = ServiceReport(
    "/data/x.gnn", "ab", 5, False, 1000, 600, {"resident": 90}, 2, 17, (CLIENT, CLIENT)
)


def sent(report: ServiceReport) -> Any:
    return json.loads(json.dumps(report.to_json()))


def test_a_report_arrives_as_it_was():
    assert ServiceReport.from_json(sent(REPORT)) == REPORT
    unlimited = ServiceReport("/x", "ab", 5, True, None, 600, {}, 2.5, 0, ())
    assert ServiceReport.from_json(sent(unlimited)) == unlimited
    assert (REPORT.left, unlimited.left) == (400, None)


def test_the_largest_page_fits_a_message():
    client = ClientReport(1 << 31, "\N{SLEEPING FACE}" * 100, *[1 << 50] * 6, 1e-300 / 3)
    path = "\udcff" * 4096
    report = ServiceReport(
        path, "f" * 64, 1 << 31, False, 1 << 60, 1 << 60, {"x" * 50: 1 << 60}, 1.0, 1 << 31,
        (client,) * PAGE_CLIENTS,
    )  # fmt: skip
    message = Message(Kind.REPORT, text=report.to_json()).encode()
    assert len(message) <= MESSAGE_BYTES_MAX
    assert ServiceReport.from_json(Message.decode(message).text) == report


@pytest.mark.parametrize("name", [each for each in sent(REPORT) if each != "protocol"])
@pytest.mark.parametrize("value", [None, "1", -1.5, [1], {"a": "b"}, True])
def test_a_wrong_value_is_refused(name, value):
    text = sent(REPORT)
    fine = {"memory": (type(None),), "path": (str,), "identity": (str,), "time_s": (float,)}
    fine |= {"draining": (bool,)}
    if isinstance(value, fine.get(name, ())):
        return
    with pytest.raises(ProtocolError):
        ServiceReport.from_json(text | {name: value})
    del text[name]
    if name != "memory":
        with pytest.raises(ProtocolError):
            ServiceReport.from_json(text)


@pytest.mark.parametrize("name", list(sent(REPORT)["clients"][0]))
def test_a_wrong_value_of_a_client_is_refused(name):
    text = sent(REPORT)
    text["clients"][1][name] = None
    with pytest.raises(ProtocolError):
        ServiceReport.from_json(text)


def test_another_version_is_named():
    for text in ({}, sent(REPORT) | {"protocol": 0}):
        with pytest.raises(ConfigError, match="run both with one version of gnndrive"):
            ServiceReport.from_json(text)
