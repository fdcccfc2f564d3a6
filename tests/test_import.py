"""`import gnndrive` imports nothing that takes long; its names are there when they are used."""

import ast
import subprocess
import sys

import pytest

import gnndrive
from tests.project_files import ROOT

LIGHTNING = {"LightningLinkData", "LightningNodeData"}  # not in `__all__`: it may not be installed


def imported_by(code: str) -> set[str]:
    """The top-level modules that a process has imported after `code`."""
    code += "\nimport sys; print(sorted({name.split('.')[0] for name in sys.modules}))"
    run = [sys.executable, "-c", code]
    *_, last = subprocess.check_output(run, text=True, cwd=ROOT).splitlines()
    return set(ast.literal_eval(last))


def test_nothing_is_imported_with_the_package() -> None:
    found = imported_by("import gnndrive; assert 'NeighborLoader' in dir(gnndrive)")
    assert found.isdisjoint({"torch", "torch_geometric", "numpy"})


def test_a_name_imports_what_it_needs() -> None:
    found = imported_by("import gnndrive\nfrom gnndrive import ConfigError\ngnndrive.common.errors")
    assert "torch" not in found


def test_each_public_name_is_in_one_module() -> None:
    names = [name for names in gnndrive._MODULES.values() for name in names]
    assert sorted(names) == sorted({*gnndrive.__all__, *LIGHTNING})
    for name in gnndrive.__all__:
        assert getattr(gnndrive, name).__name__ == name


def test_type_checkers_find_the_same_names() -> None:
    tree = ast.parse((ROOT / "gnndrive" / "__init__.py").read_text())
    [block] = [each for each in tree.body if isinstance(each, ast.If)]
    found: dict[str, set[str]] = {}
    for each in block.body:
        assert isinstance(each, ast.ImportFrom)
        module = (each.module or "").removeprefix("gnndrive.")
        found.setdefault(module, set()).update(alias.name for alias in each.names)
    assert found == {module: set(names) for module, names in gnndrive._MODULES.items()}


def test_other_names_are_not_there() -> None:
    assert not [name for name in ("Loader", "_core2", "nothing") if hasattr(gnndrive, name)]
    with pytest.raises(AttributeError, match=r"NeigborLoader.* \(did you mean NeighborLoader\?\)"):
        gnndrive.NeigborLoader  # noqa: B018
