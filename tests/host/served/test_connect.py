"""`gnndrive.connect`: the store of a service, which must be of this user and of that store."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, HostServiceError, Store, StoreError
from gnndrive.host import connection, inquiry
from gnndrive.host.connect import service_of
from gnndrive.host.inquiry import ask
from gnndrive.host.messages import PROTOCOL, Kind, Message
from gnndrive.host.names import address_of
from gnndrive.host.start import Listener


def test_a_name_opens_the_store_that_is_served(serve, store):
    serving = serve()
    for name in (serving.name, f"gnndrive://{serving.name}"):
        opened = gnndrive.connect(name)
        assert isinstance(opened, Store)
        assert (opened.path, opened.identity) == (store.path, store.identity)
        assert service_of(opened) == serving.address
        assert torch.equal(opened.y, store.y)
    assert service_of(store) is None


def test_copies_and_pickles_know_the_service(serve):
    serving = serve()
    opened = gnndrive.connect(serving.name)
    opened.colour = torch.arange(opened.num_nodes)
    for other in (copy.copy(opened), copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        assert service_of(other) == serving.address
        assert torch.equal(other.colour, opened.colour)


def test_a_pickle_of_another_store_is_refused(serve, tmp_path):
    serving = serve()
    pickled = pickle.dumps(gnndrive.connect(serving.name))
    data = Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    serving.service.store = gnndrive.from_data(data, tmp_path / "other.gnn")
    with pytest.raises(StoreError, match="serves another store than the one that was pickled"):
        pickle.loads(pickled)


def test_a_store_that_was_written_again_is_refused(serve, store, tmp_path):
    copied = gnndrive.open(shutil.copytree(store.path, tmp_path / "copy.gnn"))
    serving = serve(copied)
    data = Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    gnndrive.from_data(data, copied.path, if_exists="replace")
    with pytest.raises(StoreError, match=r"was written again since gnndrive://test-.* opened it"):
        gnndrive.connect(serving.name)


@pytest.mark.parametrize("name", ["gnndrive://no/name", ""])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ConfigError, match="is no name of a service"):
        gnndrive.connect(name)


def test_no_service_says_how_to_start_one():
    name = f"none-{os.getpid()}"
    with pytest.raises(HostServiceError, match=f"gnndrive://{name} is not running.*gnndrive serve"):
        gnndrive.connect(name)
    with pytest.raises(HostServiceError, match=f"gnndrive://{name} is not running"):
        gnndrive.NeighborLoader(f"gnndrive://{name}", [2])
    with pytest.raises(HostServiceError, match=f"gnndrive://{name} is not running"):
        gnndrive.LinkNeighborLoader(f"gnndrive://{name}", [2])


def test_a_service_is_no_folder(serve, store):
    name = serve().name
    for given in (f"gnndrive://{name}", Path(f"gnndrive://{name}")):
        with pytest.raises(StoreError, match=rf"open its store with gnndrive.connect\('{name}'\)"):
            gnndrive.open(given)
    module = gnndrive.LightningNodeData(f"gnndrive://{name}", num_neighbors=[2])
    assert module.data.identity == store.identity
    module = gnndrive.LightningLinkData(f"gnndrive://{name}", num_neighbors=[2])
    assert service_of(module.data) is not None


def test_another_users_service_is_not_trusted(serve, monkeypatch):
    serving, user = serve(), os.geteuid() + 1
    monkeypatch.setattr(connection, "peer_credentials", lambda sock: (1, user))
    with pytest.raises(HostServiceError, match=f"is that of user {user}: only this user's, or ro"):
        gnndrive.connect(serving.name)
    monkeypatch.setattr(connection, "peer_credentials", lambda sock: (1, 0))
    gnndrive.connect(serving.name)


def test_another_user_is_not_accepted(serve, monkeypatch):
    serving, user = serve(), os.geteuid() + 1
    monkeypatch.setattr("gnndrive.host.acceptor.peer_credentials", lambda sock: (1, user))
    with pytest.raises(HostServiceError, match="is not running, has ended"):
        gnndrive.connect(serving.name)
    assert serving.said == [f"user {user} was refused: only user {os.geteuid()} may connect"]


def answer(listener: Listener, data: bytes) -> socket.socket:
    """Accept a client that has connected, and send it something."""
    client, _ = listener.sock.accept()
    client.send(data)
    return client


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Message(Kind.LEFT).encode(), "it answered with LEFT"),
        (b"nonsense", "fewer than a head"),
        (Message(Kind.REPORT, text={"protocol": PROTOCOL}).encode(), "a report has path=None"),
    ],
)
def test_a_wrong_answer_is_an_error(data, said, monkeypatch):
    address = address_of(f"wrong-{os.getpid()}")
    with Listener(address) as listener:
        connect, clients = inquiry.connected, list[socket.socket]()

        def connected(address):
            sock = connect(address)
            clients.append(answer(listener, data))
            return sock

        monkeypatch.setattr(inquiry, "connected", connected)
        with pytest.raises(HostServiceError, match=said):
            ask(address)
        for client in clients:
            client.close()


def test_a_service_that_is_stopped_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(inquiry, "ANSWER_S", 0.01)
    address = address_of(f"stopped-{os.getpid()}")
    with Listener(address), pytest.raises(HostServiceError, match=r"does not answer within 0\.01"):
        ask(address)
