"""The tree is tidy: who imports whom, what no file may say, and what each module must."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path

import pytest

from gnndrive.common import plugins
from gnndrive.common.items import Shape
from tests import second
from tests.project_files import ROOT, files, named

# Who may import whom: a folder may import itself and those below it in this list.
ORDER = [
    "__init__", "cli", "testing", "inference", "strategies", "loader", "strategies.base", "plan",
    "exchange", "host", "pipeline", "pyg", "sampling", "buffer", "disk", "store", "common",
]  # fmt: skip
# The kinds of plug-ins, each a folder of implementations found by name.
KINDS = [folder.removeprefix("gnndrive.") for folder in plugins.KINDS.values()]
# The order above has no exception. What measures, what fakes and what composes may name plug-ins.
MAY_NAME_PLUGINS = ("cli", "testing", "strategies", "strategies.base")
# PyG's temporal strategy, an attribute, a key of a file, an argument and a folder of the store, and
# two arguments.
AMBIGUOUS = {"uniform", "table", "disk", "packed", "megabatch", "partitioned", "static"}
CORE_IMPORTER = "gnndrive.common.ffi"
SPOKEN = (".py", ".c", ".h", ".md", ".toml", ".cfg", ".ini", ".sh", ".yml", ".yaml", ".in")
# The brackets keep these patterns from finding themselves.
FORBIDDEN = {
    "a registry host": re.compile(r"pypi[.]org|pythonhosted[.]|pytorch[.]org/whl", re.I),
    "unfinished work": re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"),
}
SKIPS = re.compile(r"mark[.](skip|skipif|xfail)\b|pytest[.](skip|xfail|importorskip)[(]")
MAY_SKIP = re.compile(r"tests/gpu/|tests/test_facebook[.]py: +pytest[.]skip[(]missing[)]$")


# ---- imports


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in files(".py") if named(path).startswith("gnndrive/")}


@lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a file's tree; one check after another asks for those of the same file."""
    return list(ast.walk(ast.parse(source)))


@cache
def imported(source: str, module: str, is_package: bool) -> list[tuple[int, str]]:
    """(line, gnndrive module) of each import, wherever in the file it stands: in functions and
    under TYPE_CHECKING too."""
    return list(_imported(source, module, is_package))


def _imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    for node in nodes_of(source):
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
    if module == "gnndrive.strategies.base":
        return "strategies.base"
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
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and node.value in names_of_plugins():
            yield node.lineno, str(node.value)


@cache
def names_of_plugins() -> set[str]:
    """The names of all plug-ins, but for those that mean something else too."""
    return {name for kind in KINDS for name in plugins.names(kind.split(".")[1])} - AMBIGUOUS


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


# ---- words


def docstring_findings(source: str, name: str) -> list[str]:
    """Modules, public classes and public functions at the top that say nothing of themselves."""
    tree = nodes_of(source)[0]
    assert isinstance(tree, ast.Module)
    silent_module = source.strip() and not ast.get_docstring(tree)
    findings = [f"{name}: no module docstring"] if silent_module else []
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in tree.body:
        silent = isinstance(node, kinds) and not ast.get_docstring(node)
        if silent and not node.name.startswith("_"):
            findings.append(f"{name}:{node.lineno} {node.name} has no docstring")
    return findings


def word_findings(source: str, name: str) -> list[str]:
    """Words that no file may say, and skips for any other reason than a missing GPU or data."""
    findings = []
    for number, line in enumerate(source.splitlines(), 1):
        said = [what for what, pattern in FORBIDDEN.items() if pattern.search(line)]
        if SKIPS.search(line) and not MAY_SKIP.match(f"{name}:{line}"):
            said.append("a skip for another reason than a missing GPU or data")
        findings += [f"{name}:{number} says {what}" for what in said]
    return findings


def sleep_findings(source: str, name: str) -> list[str]:
    """Calls of any `sleep`, but `asyncio.sleep(0)`, which only yields."""
    findings = []
    for node in nodes_of(source) if "sleep" in source else []:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        yields = [ast.unparse(argument) for argument in node.args] == ["0"]
        if called.split(".")[-1] == "sleep" and not (yields and called != "time.sleep"):
            findings.append(f"{name}:{node.lineno} calls {ast.unparse(node)}")
    return findings


# ---- the project


def test_imports_go_downward_and_modules_say_what_they_are():
    findings = []
    for module, path in modules().items():
        source = path.read_text()
        findings += import_findings(source, module, path.name == "__init__.py")
        findings += docstring_findings(source, named(path))
    assert not findings


STRATEGYS_WORD = re.compile(
    r"mega_?batch|super_?batch|recording|victim|partition|\b(un)?pack(s|ed|ing)?\b|\bpasses\b", re.I
)


def shared_code() -> list[Path]:
    """The files that serve every strategy."""
    folders = ("gnndrive/loader/", "gnndrive/plan/", "gnndrive/pipeline/")
    return [path for path in files(".py") if named(path).startswith(folders)]


def test_shared_code_knows_no_strategy():
    assert not [
        f"{named(path)}:{number}: {line}"
        for path in shared_code()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if STRATEGYS_WORD.search(line)
    ]
    imports = {
        target
        for path in shared_code()
        for _, target in imported(path.read_text(), module_name(path), False)
        if folder_of(target).startswith("strategies")
    }
    assert imports == {"gnndrive.strategies.base"}


def test_a_field_of_shape_is_read_by_two_files_at_least():
    """What one part alone needs is that part's own."""
    texts = [path.read_text() for path in modules().values()]
    for each in fields(Shape):
        reads = re.compile(rf"\b(shape|self)[.]{each.name}\b")
        assert sum("Shape" in text and bool(reads.search(text)) for text in texts) >= 2, each.name


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


def test_other_modules_say_what_they_are():
    """Of tests and scripts of bench only the module must; their trees are not needed for that."""
    sources = {named(path): path.read_text() for path in files(".py")}
    findings = []
    for name, source in sources.items():
        if name.startswith(("tests/", "bench/")):
            findings += [name] if source.strip() and not source.startswith('"""') else []
        elif not name.startswith("gnndrive/"):
            findings += docstring_findings(source, name)
    assert not findings


def test_no_file_says_what_none_may():
    paths = [*files(*SPOKEN), ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / ".ci" / "system"]
    assert not [f for path in paths for f in word_findings(path.read_text(), named(path))]


def test_tests_never_sleep():
    assert not [
        finding
        for path in files(".py")
        if named(path).startswith("tests/")
        for finding in sleep_findings(path.read_text(), named(path))
    ]


def test_second_implementations_are_of_each_kind_and_import_no_other():
    assert second.SECOND.keys() == plugins.KINDS.keys()
    source = Path(second.__file__).read_text()
    modules = [module for _, module in imported(source, "tests.second", True)]
    assert {kind_of(module)[1] for module in modules} == {"", "base", "shared"}


# ---- the checks find what they should


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("gnndrive.common.errors", "from gnndrive.store import reader", 1),
        ("gnndrive.common.ffi", "from gnndrive._core import ffi, lib", 0),
        ("gnndrive.disk.engines.uring", "from .threads import Threads", 1),
        ("gnndrive.disk.engines.uring", "from gnndrive.disk.engines import _shared, base", 0),
        ("gnndrive.disk.engines.base", "from gnndrive.disk.engines.uring import Uring", 1),
        ("gnndrive.store.reader", "from gnndrive._core import lib", 1),
        ("gnndrive.store.reader", "from gnndrive.store.format import a\nfrom . import checks", 0),
        ("gnndrive.pipeline.train", "def f():\n    from gnndrive.loader import NeighborLoader", 1),
        ("gnndrive.plan.plan", "if TYPE_CHECKING:\n    from gnndrive.loader import settings", 1),
        ("gnndrive.loader.runtime", "find('policies', 'lru')", 1),
        ("gnndrive.loader.runtime", "import rich\nfind('policies', settings.policy)", 0),
        ("gnndrive.attic.old", "import numpy", 1),
    ],
)
def test_an_import_that_goes_up_or_names_a_plug_in_is_found(module: str, source: str, count: int):
    assert len(import_findings(source, module)) == count


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("check", "source", "name", "count"),
    [
        (docstring_findings, "x = 1", "a.py", 1),
        (docstring_findings, '"""A."""\ndef f(): ...', "a.py", 1),
        (word_findings, "url = 'https://py~pi.org/simple'", "a.py", 1),
        (word_findings, "@pytest.mark.sk~ipif(not torch.cuda.is_available())", "tests/a.py", 1),
        (word_findings, "@pytest.mark.sk~ipif(not torch.cuda.is_available())", "tests/gpu/a.py", 0),
        (word_findings, "        pytest.sk~ip(missing)", "tests/test_docs.py", 1),
        (word_findings, "        pytest.sk~ip(missing)", "tests/test_facebook.py", 0),
        (sleep_findings, "time.sleep(0)", "a.py", 1),
        (sleep_findings, "async def f():\n    await asyncio.sleep(0.01)", "a.py", 1),
        (sleep_findings, "async def f():\n    await asyncio.sleep(0)", "a.py", 0),
    ],
)
def test_silence_forbidden_words_and_sleeps_are_found(check, source, name, count):
    assert len(check(source.replace("~", ""), name)) == count
