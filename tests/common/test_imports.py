"""A deferred module is imported at its first use."""

import sys

import pytest

from gnndrive.common.imports import defer

NAME = "gnndrive_deferred_example"


@pytest.fixture
def example(tmp_path, monkeypatch):
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
