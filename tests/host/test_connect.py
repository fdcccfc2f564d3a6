"""`gnndrive.connect`: the store of a service, which must be of this user and of that store."""

import copy
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, HostServiceError, Store, StoreError
from gnndrive.host import connection, names
from gnndrive.host.connect import service_of
from gnndrive.host.connection import ask
from gnndrive.host.messages import PROTOCOL, Kind, Message
from gnndrive.host.start import Listener
from gnndrive.host.wire import abstract_name, new_socket


def other_store(path, **more):
    data = Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    return gnndrive.from_data(data, path, **more)


def test_a_name_opens_the_store_that_is_served_and_a_pickle_has_it(serve, store, tmp_path):
    serving = serve()
    opened = gnndrive.connect(f"gnndrive://{serving.name}")
    opened.colour = torch.arange(opened.num_nodes)
    pickled = pickle.dumps(opened)
    for each in (opened, copy.copy(opened), copy.deepcopy(opened), pickle.loads(pickled)):
        assert isinstance(each, Store)
        assert (each.path, each.identity) == (store.path, store.identity)
        assert service_of(each) == serving.address
        assert torch.equal(each.colour, opened.colour)
        assert torch.equal(each.y, store.y)
    assert service_of(store) is None
    serving.service.store = other_store(tmp_path / "other.gnn")
    with pytest.raises(StoreError, match="serves another store than the one that was pickled"):
        pickle.loads(pickled)


def test_a_store_that_was_written_again_is_refused(serve, store, tmp_path):
    copied = gnndrive.open(shutil.copytree(store.path, tmp_path / "copy.gnn"))
    serving = serve(copied)
    other_store(copied.path, if_exists="replace")
    with pytest.raises(StoreError, match=r"was written again since gnndrive://test-.* opened it"):
        gnndrive.connect(serving.name)


def test_no_service_says_how_to_start_one():
    name = f"none-{os.getpid()}"
    said = f"gnndrive://{name} is not running.*gnndrive serve"
    for load in (gnndrive.NeighborLoader, gnndrive.LinkNeighborLoader):
        with pytest.raises(HostServiceError, match=said):
            load(f"gnndrive://{name}", [2])


def test_a_service_is_no_folder(serve, store):
    name = serve().name
    for given in (f"gnndrive://{name}", Path(f"gnndrive://{name}")):
        with pytest.raises(StoreError, match=rf"open its store with gnndrive.connect\('{name}'\)"):
            gnndrive.open(given)
    for module in (gnndrive.LightningNodeData, gnndrive.LightningLinkData):
        data = module(f"gnndrive://{name}", num_neighbors=[2]).data
        assert (data.identity, service_of(data) is None) == (store.identity, False)


def test_another_users_service_is_not_trusted(serve, monkeypatch):
    serving, user = serve(), os.geteuid() + 1
    monkeypatch.setattr(connection, "peer_credentials", lambda sock: (1, user))
    with pytest.raises(HostServiceError, match=f"is that of user {user}: only this user's, or ro"):
        gnndrive.connect(serving.name)
    monkeypatch.setattr(connection, "peer_credentials", lambda sock: (1, 0))
    gnndrive.connect(serving.name)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Message(Kind.LEFT).encode(), "it answered with LEFT"),
        (b"nonsense", "fewer than a head"),
        (Message(Kind.REPORT, text={"protocol": PROTOCOL}).encode(), "a report has path=None"),
        (None, r"does not answer within 0\.01"),
    ],
)
def test_a_wrong_answer_is_an_error_and_none_is_not_waited_for_long(data, said, monkeypatch):
    address, connect, clients = names.address_of(f"wrong-{os.getpid()}"), connection.connected, []
    if data is None:
        monkeypatch.setattr(connection, "ANSWER_S", 0.01)
    with Listener(address) as listener:

        def connected(address):
            sock = connect(address)
            clients.append(listener.sock.accept()[0])
            if data is not None:
                clients[0].send(data)
            return sock

        monkeypatch.setattr(connection, "connected", connected)
        with pytest.raises(HostServiceError, match=said):
            ask(address)
        clients[0].close()


# ---- names


def test_names():
    for text in ("papers100M", "gnndrive://x.y_z-9", "0" * 64):
        name = names.checked_name(text)
        assert name == text.removeprefix("gnndrive://")
        assert len(abstract_name(names.address_of(name))) < 108
    for text in ("", "gnndrive://", "a/b", "-a", "a b", "é", "0" * 65, "a\n"):
        with pytest.raises(ConfigError, match="is no name of a service: give up to 64 letters"):
            names.checked_name(text)
    assert names.name_for(Path("/data/papers100M.gnn")) == "papers100M"
    with pytest.raises(ConfigError, match=r"'my papers\.gnn', is no service's: give one, --name"):
        names.name_for(Path("/data/my papers.gnn"))


def test_services_that_listen_are_found_once():
    address = names.address_of(f"found-{os.getpid()}")
    assert address == f"{os.geteuid()}-found-{os.getpid()}"
    assert names.shown(address) == f"the service gnndrive://found-{os.getpid()}"
    with Listener(address) as listener, Listener() as of_ranks:
        client = new_socket()
        client.connect(abstract_name(address))
        accepted, _ = listener.sock.accept()
        found = names.addresses()
        assert found.count(address) == found.count(of_ranks.address) == 1
        assert [names.is_named(each) for each in (address, of_ranks.address)] == [True, False]
        with pytest.raises(FileExistsError):
            Listener(address)
        client.close()
        accepted.close()
    assert address not in names.addresses()


def test_other_sockets_are_not_services(tmp_path, monkeypatch):
    lines = [
        "Num       RefCount Protocol Flags    Type St Inode Path",
        "0: 00000002 00000000 00010000 0005 01 1 @gnndrive-1000-a b",
        "0: 00000002 00000000 00010000 0001 01 2 /run/gnndrive-1000-file",
        "0: 00000003 00000000 00000000 0005 03 3 @gnndrive-1000-connected",
        "0: 00000003 00000000 00010000 0005 03 4",
    ]
    (tmp_path / "unix").write_text("\n".join(lines))
    monkeypatch.setattr(names, "_SOCKETS", tmp_path / "unix")
    assert names.addresses() == ["1000-a b"]
