"""A deferred module is imported at its first use; the host service never uses PyTorch."""

from __future__ import annotations

import sys

import pytest

from gnndrive.host.deferred import defer
from tests.test_import import imported_by

NAME = "gnndrive_deferred_example"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The name of a package with a module `inside`."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 5\n")
    (folder / "inside.py").write_text("VALUE = 6\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (NAME, f"{NAME}.inside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return NAME


def test_only_its_use_imports_a_deferred_module(example):
    defer(example)
    first = __import__(example)
    assert first is __import__(example)
    assert "VALUE" not in vars(first)
    assert first.VALUE == 5
    assert sys.modules[example] is not first
    for _ in range(2):
        with pytest.raises(AttributeError, match="NOTHING"):
            assert first.NOTHING
    defer(example)
    assert "VALUE" in vars(sys.modules[example]), "it is imported already"


def test_a_name_of_it_or_a_module_inside_imports_it(example):
    defer(example)
    scope = {}
    exec(f"import {example}.inside as inside\nfrom {example} import VALUE", scope)
    assert (vars(scope["inside"])["VALUE"], scope["VALUE"]) == (6, 5)


def test_the_host_service_starts_without_torch():
    found = imported_by(
        "from gnndrive.host.deferred import defer\n"
        "defer('torch')\n"
        "import gnndrive.host.process, sys\n"
        "assert 'from_numpy' not in vars(sys.modules.pop('torch'))\n"
    )
    assert "numpy" in found
    assert found.isdisjoint({"torch", "torch_geometric"})
