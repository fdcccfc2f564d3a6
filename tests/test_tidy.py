"""The house is tidy: who imports whom, how large things are, what no file may say.

Each check is a function from text to findings, so that the tests at the end can show that it finds
what it should.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 400
FUNCTION_LINES = 70
COLUMNS = 100
ENTRIES = 14

# Who may import whom: a folder may import itself and those below it in this list.
ORDER = [
    "__init__", "cli", "testing", "loader", "plan", "strategies", "pipeline", "pyg", "sampling",
    "buffer", "disk", "store", "common",
]  # fmt: skip
# The kinds of plug-ins, each a folder of implementations found by name.
KINDS = [
    "sampling.schedules", "sampling.samplers", "sampling.topologies", "buffer.policies",
    "buffer.devices", "disk.layouts", "disk.engines", "disk.tiers",
]  # fmt: skip
MAY_NAME_PLUGINS = ("cli", "testing")  # what measures and what fakes use those that they are about
CORE_IMPORTER = "gnndrive.common.ffi"

SPOKEN = (".py", ".c", ".h", ".md", ".toml", ".cfg", ".ini", ".sh", ".yml", ".yaml", ".in")
# The brackets keep these patterns from finding themselves.
FORBIDDEN = {
    "a registry host": re.compile(r"pypi[.]org|pythonhosted[.]|pytorch[.]org/whl", re.I),
    "unfinished work": re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"),
}
SKIPS = re.compile(r"mark[.](skip|skipif|xfail)\b|pytest[.](skip|xfail|importorskip)[(]")


def files(*suffixes: str) -> list[Path]:
    """The project's own files: what is built, installed or hidden left out, .ci kept."""
    tops = ["gnndrive", "native", "tests", "bench", "docs", ".ci"]
    found = [path for top in tops for path in sorted((ROOT / top).rglob("*")) if path.is_file()]
    found += [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    made = {"_core.c"}
    return [path for path in found if path.suffix in suffixes and path.name not in made]


def named(path: Path) -> str:
    """The path from the project's root."""
    return path.relative_to(ROOT).as_posix()


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
    return findings


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


# ---- sizes


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function, its decorators left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(source: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function: from a line at the margin to the brace at the margin."""
    start, head, inside = 0, "", False
    for number, line in enumerate(source.splitlines()):
        code = re.sub(r"/\*.*?\*/|//.*", "", line).rstrip()
        if inside and code.startswith("}"):
            if name := re.search(r"(\w+)\s*\(", head):
                yield name[1], number - start + 1
            head, inside = "", False
        elif not inside and (head or re.match(r"[A-Za-z_]", code)):
            start = start if head else number
            head += f" {code}"
            inside = code.endswith("{")
            if code.endswith((";", "}")):  # a declaration, or all on one line
                head = ""


def size_findings(source: str, name: str) -> list[str]:
    """Files, functions and lines that are too long."""
    lines = source.splitlines()
    functions = c_functions if name.endswith(".c") else python_functions
    findings = [
        f"{name}:{number} has {len(line)} columns"
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS
    ]
    if len(lines) >= FILE_LINES:
        findings.append(f"{name} has {len(lines)} lines")
    if not name.endswith(".h"):
        findings += [
            f"{name}: {function} has {count} lines"
            for function, count in functions(source)
            if count >= FUNCTION_LINES
        ]
    return findings


# ---- words


def docstring_findings(source: str, name: str) -> list[str]:
    """Modules, public classes and public functions at the top that say nothing of themselves."""
    tree = ast.parse(source)
    silent_module = source.strip() and not ast.get_docstring(tree)
    findings = [f"{name}: no module docstring"] if silent_module else []
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in tree.body:
        silent = isinstance(node, kinds) and not ast.get_docstring(node)
        if silent and not node.name.startswith("_"):
            findings.append(f"{name}:{node.lineno} {node.name} has no docstring")
    return findings


def word_findings(source: str, name: str) -> list[str]:
    """Words that no file may say, and skips outside the folder of tests that need a GPU."""
    findings = []
    for number, line in enumerate(source.splitlines(), 1):
        said = [what for what, pattern in FORBIDDEN.items() if pattern.search(line)]
        if SKIPS.search(line) and not name.startswith("tests/gpu/"):
            said.append("a skip that is not for want of a GPU")
        findings += [f"{name}:{number} says {what}" for what in said]
    return findings


def sleep_findings(source: str, name: str) -> list[str]:
    """Calls of any `sleep`, but `asyncio.sleep(0)`, which only yields."""
    findings = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        yields = [ast.unparse(argument) for argument in node.args] == ["0"]
        if called.split(".")[-1] == "sleep" and not (yields and called != "time.sleep"):
            findings.append(f"{name}:{node.lineno} calls {ast.unparse(node)}")
    return findings


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


def test_the_package_has_few_entries():
    entries = {
        named(path).split("/")[1] for path in files(".py") if named(path).startswith("gnndrive/")
    }
    assert len(entries) <= ENTRIES
    assert {entry.removesuffix(".py") for entry in entries} == set(ORDER)


def test_files_functions_and_lines_are_short():
    assert not [
        f for path in files(".py", ".c", ".h") for f in size_findings(path.read_text(), named(path))
    ]


def test_modules_say_what_they_are():
    assert not [
        finding
        for path in files(".py")
        for finding in docstring_findings(path.read_text(), named(path))
        if not named(path).startswith(("tests/", "bench/")) or "no module docstring" in finding
    ]


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


def test_what_is_too_long_is_found():
    body = "    x = 1\n"
    assert size_findings("def f():\n" + body * 68, "a.py") == []
    assert size_findings("def f():\n" + body * 69, "a.py") == ["a.py: f has 70 lines"]
    assert size_findings("x = 1\n" * 400, "a.py") == ["a.py has 400 lines"]
    assert size_findings("x" * 101, "a.h") == ["a.h:1 has 101 columns"]
    assert size_findings(_c_function(64), "a.c") == []
    assert size_findings(_c_function(65), "a.c") == ["a.c: f has 70 lines"]


def _c_function(lines: int) -> str:
    head = "struct s { int a; };\nstatic int f(int a);\nenum { A = 1 };\n"
    return head + "static int\nf(int a,\n  int b)\n{\n" + "    b++;\n" * lines + "}\n"


def test_silence_is_found():
    assert docstring_findings("x = 1", "a.py") == ["a.py: no module docstring"]
    assert docstring_findings('"""A."""\ndef f(): ...', "a.py") == ["a.py:2 f has no docstring"]
    assert docstring_findings('"""A."""\ndef _f(): ...', "a.py") == []


@pytest.mark.parametrize(
    "line",
    [
        "# T~ODO: later",
        "url = 'https://py~pi.org/simple'",
        "@pytest.mark.sk~ip",
        "@pytest.mark.sk~ipif(sys.platform == 'win32')",
        "    pytest.sk~ip('no disk')",
    ],
)
def test_a_forbidden_word_is_found(line: str):
    assert len(word_findings(line.replace("~", ""), "a.py")) == 1


def test_a_gpu_test_may_be_skipped():
    line = "@pytest.mark.sk~ipif(not torch.cuda.is_available())".replace("~", "")
    assert not word_findings(line, "tests/gpu/test_streams.py")
    assert len(word_findings(line, "tests/loader/test_device.py")) == 1


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("time.sleep(0)", True),
        ("sleep(1)", True),
        ("await asyncio.sleep(0.01)", True),
        ("await asyncio.sleep(0)", False),
    ],
)
def test_a_sleep_is_found(call: str, found: bool):
    assert bool(sleep_findings(f"async def f():\n    {call}", "a.py")) is found
