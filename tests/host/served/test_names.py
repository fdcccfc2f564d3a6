"""Names of services: what may be one, which address it has, and which services are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnndrive import ConfigError
from gnndrive.host import names
from gnndrive.host.start import Listener
from gnndrive.host.wire import abstract_name, new_socket


@pytest.mark.parametrize("text", ["papers100M", "gnndrive://papers100M", "a", "x.y_z-9", "0" * 64])
def test_names(text):
    name = names.checked_name(text)
    assert name == text.removeprefix("gnndrive://")
    assert len(abstract_name(names.address_of(name))) < 108


@pytest.mark.parametrize(
    "text", ["", "gnndrive://", "a/b", "-a", ".a", "a b", "é", "0" * 65, "a\n"]
)
def test_what_is_no_name(text):
    with pytest.raises(ConfigError, match="is no name of a service: give up to 64 letters"):
        names.checked_name(text)


def test_a_store_gives_its_folders_name():
    assert names.name_for(Path("/data/papers100M.gnn")) == "papers100M"
    assert names.name_for(Path("/data/papers")) == "papers"
    with pytest.raises(ConfigError, match=r"'my papers\.gnn', is no service's: give one, --name"):
        names.name_for(Path("/data/my papers.gnn"))


def test_an_address_has_the_users_number():
    address = names.address_of("papers")
    assert address == f"{os.geteuid()}-papers"
    assert names.is_named(address)
    assert names.shown(address) == "the service gnndrive://papers"
    with Listener() as listener:
        assert not names.is_named(listener.address)
        assert names.shown(listener.address) == "the host service"


def test_services_that_listen_are_found_once():
    address = names.address_of(f"found-{os.getpid()}")
    assert address not in names.addresses()
    with Listener(address) as listener, Listener() as of_ranks:
        client = new_socket()
        client.connect(abstract_name(address))
        accepted, _ = listener.sock.accept()
        found = names.addresses()
        assert found.count(address) == 1
        assert of_ranks.address in found
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
        "0: 00000003 00000000 00010000 0005 03 5 @other",
    ]
    table = tmp_path / "unix"
    table.write_text("\n".join(lines))
    monkeypatch.setattr(names, "_SOCKETS", table)
    assert names.addresses() == ["1000-a b"]
