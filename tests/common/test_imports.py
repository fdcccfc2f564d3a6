"""A deferred module is imported at its first use; a quick import does no collections."""

import gc
import sys

import pytest

from gnndrive.common.imports import defer, import_quickly

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


@pytest.mark.parametrize("collects", [True, False])
def test_a_quick_import_does_no_collections_and_leaves_them_as_they_were(
    example, tmp_path, collects
):
    (tmp_path / example / "inside.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    (tmp_path / example / "wrong.py").write_text("1 / 0\n")
    if not collects:
        gc.disable()
    try:
        assert not import_quickly(f"{example}.inside").COLLECTS
        with pytest.raises(ZeroDivisionError):
            import_quickly(f"{example}.wrong")
        assert gc.isenabled() is collects
    finally:
        gc.enable()
