"""The tree is tidy: who imports whom, down one ordered list of folders, and no circles.

Each check is a function from text to findings, so that the tests at the end can show that it finds
what it should.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnndrive.common import plugins
from tests.project_files import ROOT, files, named

# Who may import whom: a folder may import itself and those below it in this list.
ORDER = [
    "__init__", "cli", "testing", "inference", "loader", "plan", "host", "strategies", "pipeline",
    "pyg", "sampling", "buffer", "disk", "store", "common",
]  # fmt: skip
# The kinds of plug-ins, each a folder of implementations found by name.
KINDS = [
    "sampling.schedules", "sampling.samplers", "sampling.topologies", "buffer.policies",
    "buffer.devices", "disk.layouts", "disk.engines", "disk.tiers",
]  # fmt: skip
# The order above has no exception. What measures, what fakes and what composes may name plug-ins.
MAY_NAME_PLUGINS = ("cli", "testing", "strategies")
# PyG's temporal strategy, an attribute, a key of a file, an argument and a folder of the store, and
# two arguments.
AMBIGUOUS = {"uniform", "table", "disk", "packed", "megabatch", "partitioned", "static"}
CORE_IMPORTER = "gnndrive.common.ffi"


# ---- imports


def module_name(path: Path) -> str:
    """The dotted name of a module of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    return {module_name(path): path for path in files(".py") if named(path).startswith("gnndrive/")}


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, gnndrive module) of each import, wherever in the file it stands: in functions and
    under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base]).strip(".")
            names = [_module_of(base, alias.name) for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "gnndrive")


def _module_of(base: str, name: str) -> str:
    """The module that `from base import name` imports from: base.name if that is one."""
    place = ROOT / base.replace(".", "/") / name
    is_module = place.with_suffix(".py").exists() or (place / "__init__.py").exists()
    return f"{base}.{name}" if is_module or name == "_core" else base


def folder_of(module: str) -> str:
    """The entry of `ORDER` that a module belongs to."""
    return (module.split(".")[1:] or ["__init__"])[0]


def kind_of(module: str) -> tuple[str, str]:
    """The kind of plug-ins whose folder a module is in, and its place there: "base", "shared" or an
    implementation's name; ("", "") if it is in none."""
    for kind in KINDS:
        inside = f"{module}.".removeprefix(f"gnndrive.{kind}.")
        if inside != f"{module}.":
            name = inside.split(".")[0]
            return kind, "shared" if not name or name[0] == "_" else name
    return "", ""


def import_findings(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of `module` that go up, or that name an implementation of a plug-in."""
    here = folder_of(module)
    if here not in ORDER:
        return [f"{module}: say in ORDER where this folder is"]
    kind, place = kind_of(module)
    findings = []
    for line, target in imported(source, module, is_package):
        there = folder_of(target)
        target_kind, target_place = kind_of(target)
        implementation = target_place not in ("", "base", "shared")
        fine = there in ORDER and ORDER.index(here) <= ORDER.index(there)
        if there == "_core":
            fine = module == CORE_IMPORTER
        elif implementation and target != module and here not in MAY_NAME_PLUGINS:
            fine = fine and kind == target_kind and place == "shared" and is_package
        if not fine:
            findings.append(f"{module}:{line} imports {target}")
    if not kind and here not in MAY_NAME_PLUGINS:
        findings += [f"{module}:{line} names {name!r}" for line, name in found(source)]
    return findings


def found(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each text in the code that is the name of a plug-in."""
    known = {name for kind in KINDS for name in plugins.names(kind.split(".")[1])} - AMBIGUOUS
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in known:
            yield node.lineno, str(node.value)


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports, over others of the group, itself."""
    reached = {module: _reachable(module, imports) for module in imports}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in imports
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(module: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [module]
    while left:
        new = imports.get(left.pop(), set()) - found
        found |= new
        left.extend(new)
    return found


# ---- the project


def test_imports_go_downward():
    assert not [
        finding
        for module, path in modules().items()
        for finding in import_findings(path.read_text(), module, path.name == "__init__.py")
    ]


def test_no_files_import_each_other():
    imports = {
        module: {
            target
            for _, target in imported(path.read_text(), module, path.name == "__init__.py")
            if target != module
        }
        for module, path in modules().items()
    }
    assert not circles(imports)


def test_every_folder_has_its_place_in_the_order():
    assert {folder_of(module) for module in modules()} == set(ORDER)


# ---- the checks find what they should


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gnndrive.common.errors", "from gnndrive.store import reader"),
        ("gnndrive.disk.engines.uring", "from gnndrive.disk.engines.threads import Threads"),
        ("gnndrive.disk.engines.uring", "from .threads import Threads"),
        ("gnndrive.disk.engines.uring", "from gnndrive.buffer.policies import lru"),
        ("gnndrive.disk.engines.uring", "from gnndrive.disk.layouts.table import Table"),
        ("gnndrive.disk.engines.base", "from gnndrive.disk.engines.uring import Uring"),
        ("gnndrive.disk.engines._shared", "from gnndrive.disk.engines.uring import Uring"),
        ("gnndrive.store.reader", "from gnndrive._core import lib"),
        ("gnndrive.buffer.lease", "from gnndrive.buffer.devices.host import Host"),
        ("gnndrive.buffer.lease", "from gnndrive import _core"),
        ("gnndrive.pipeline.train", "def f():\n    from gnndrive.loader import NeighborLoader"),
        ("gnndrive.pipeline.train", "from gnndrive import NeighborLoader"),
        ("gnndrive.loader.runtime", "from gnndrive.cli import main"),
        ("gnndrive.loader.runtime", "from ..cli.main import main"),
        ("gnndrive.loader.runtime", "from gnndrive.sampling.schedules.given import Given"),
        ("gnndrive.plan.plan", "if TYPE_CHECKING:\n    from gnndrive.loader import settings"),
        ("gnndrive.loader.runtime", "find('policies', 'lru')"),
        ("gnndrive.loader.assembly", "policy = self._policy('belady')"),
        ("gnndrive.plan.request", "kind == 'direct'"),
        ("gnndrive.attic.old", "import numpy"),
    ],
)
def test_an_import_that_goes_up_or_names_a_plug_in_is_found(module: str, source: str):
    assert len(import_findings(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gnndrive.common.ffi", "from gnndrive._core import ffi, lib"),
        (
            "gnndrive.disk.engines.uring",
            "from gnndrive.disk.engines.base import Engine\nimport gnndrive.common.records",
        ),
        ("gnndrive.disk.engines.uring", "from gnndrive.disk.layouts.base import Layout"),
        ("gnndrive.disk.engines.uring", "from gnndrive.disk.engines import _shared"),
        ("gnndrive.store.reader", "from gnndrive.store.format import parse\nfrom . import checks"),
        ("gnndrive.cli.main", "from gnndrive.loader.neighbor_loader import NeighborLoader"),
        ("gnndrive.cli.measure.rows", "from gnndrive.disk.layouts.table import Table"),
        ("gnndrive.cli.report.live", "import rich, numpy"),
        ("gnndrive.loader.runtime", "find('policies', settings.policy)"),
        ("gnndrive.disk.engines._shared", "find('engines', 'uring')"),
    ],
)
def test_an_import_that_goes_down_is_not(module: str, source: str):
    assert not import_findings(source, module)


def test_a_kinds_folder_may_choose_among_its_implementations():
    source = "from gnndrive.disk.layouts.table import Table"
    assert not import_findings(source, "gnndrive.disk.layouts", is_package=True)


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
