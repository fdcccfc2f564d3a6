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

KINDS = [
    "schedules", "samplers", "layouts", "engines", "policies", "devices", "topologies", "tiers",
]  # fmt: skip

# Who may import whom. A room is a module or folder directly under gnndrive; `*.base` stands for the
# base.py of every kind of plug-in, `KIND` for a kind's implementations, `*` for the folders
# themselves, which may choose one. A room may import itself, but an implementation no other, only
# what its folder shares: __init__.py and modules whose names begin with "_".
_LOW = "errors records"
_CORE = f"{_LOW} _ffi blocks waiting"
_BUFFER = f"{_CORE} metrics sizes *.base"
_PIPELINE = f"{_BUFFER} buffer books line loads admission lease plugins"
_LOADER = f"""{_PIPELINE} pipeline strategies store tables labels attributes arguments memory
    demand sharing budget collate adjacency settings runtime * KIND"""
MAY_IMPORT = {
    **dict.fromkeys(("errors", "records", "_ffi", "blocks", "durable", "demand", "memory"), ""),
    "waiting": f"{_LOW} _ffi",
    "stream": _CORE,
    "sharing": f"{_LOW} demand",
    "labels": f"{_CORE} stream store",
    "tables": f"{_LOW} store",
    "attributes": f"{_CORE} *.base store",
    **dict.fromkeys(("resume", "metrics", "plugins", "described"), _LOW),
    "*.base": f"{_CORE} *.base",
    "KIND": f"{_CORE} metrics sizes stream *.base",
    "*": f"{_CORE} plugins *.base KIND",
    "store": f"{_LOW} durable sizes",
    "report": _LOW,
    "sizes": _CORE,
    "books": _BUFFER,
    "line": _CORE,
    "admission": f"{_BUFFER} books",
    "loads": f"{_BUFFER} books",
    "lease": f"{_BUFFER} books buffer",
    "buffer": f"{_BUFFER} books line loads admission lease",
    "pipeline": _PIPELINE,
    "strategies": f"{_LOW} plugins *.base",
    "arguments": f"{_LOW} sizes plugins strategies store *.base",
    "collate": f"{_CORE} *.base store tables labels described attributes",
    **dict.fromkeys(("budget", "adjacency", "settings", "buffers", "rows"), _LOADER),
    "runtime": f"{_LOADER} buffers",
    "iterator": f"{_LOADER} resume",
    "planning": f"{_LOADER} stored",
    "stored": f"{_LOADER} iterator planning resume pyg",
    "pyg": f"{_LOADER} rows",
    "links": f"{_LOW} store *.base",
    "loader": f"{_LOADER} stored pyg links",
    "testing": f"{_LOADER} loader",
    "__init__": f"{_LOADER} loader pyg report",
    "measure": f"{_CORE} plugins sizes store *.base * KIND",
    "training": f"{_LOW} durable",
    "commands": "everything",
    "cli": "everything",
}
CORE_IMPORTER = "_ffi"

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


# ---- layers


def module_name(path: Path) -> str:
    """The dotted name of a module of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, gnndrive module) of each import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base]).strip(".")
            # A name from gnndrive or from a kind's folder may be a module of it.
            folder = ROOT / base.replace(".", "/")
            in_folder = base == "gnndrive" or base.removeprefix("gnndrive.") in KINDS
            names = [
                f"{base}.{alias.name}"
                if base == "gnndrive" or (in_folder and (folder / f"{alias.name}.py").exists())
                else base
                for alias in node.names
            ]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "gnndrive")


def room(module: str) -> str:
    """The room that a module of the package is in."""
    parts = module.split(".")[1:]
    if not parts:
        return "__init__"
    if parts[0] in KINDS:
        return {"": "*", "base": "*.base"}.get("".join(parts[1:2]), "KIND")
    return parts[0]


def layer_findings(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of `module` that go up or sideways."""
    here = room(module)
    if here not in MAY_IMPORT:
        return [f"{module}: a new room: say in MAY_IMPORT what it may import"]
    allowed = MAY_IMPORT[here].split()
    findings = []
    for line, target in imported(ast.parse(source), module, is_package):
        there = room(target)
        if there == "_core":
            fine = here == CORE_IMPORTER
        elif here == "KIND" and there in ("KIND", "*"):
            folder, _, name = target.partition(".")[2].partition(".")
            fine = module.split(".")[1] == folder and (name == "" or name.startswith("_"))
        else:
            fine = there == here or there in allowed or allowed == ["everything"]
        if not fine:
            findings.append(f"{module}:{line} imports {target}")
    return findings


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
    findings = [
        finding
        for path in files(".py")
        if named(path).startswith("gnndrive/")
        for finding in layer_findings(
            path.read_text(), module_name(path), path.name == "__init__.py"
        )
    ]
    assert not findings


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
        ("gnndrive.records", "import gnndrive.errors"),
        ("gnndrive.errors", "from gnndrive import records"),
        ("gnndrive.engines.uring", "from gnndrive.engines.threads import Threads"),
        ("gnndrive.engines.uring", "from .threads import Threads"),
        ("gnndrive.engines.uring", "from gnndrive.policies import lru"),
        ("gnndrive.engines.uring", "import gnndrive.layouts"),
        ("gnndrive.engines.uring", "from gnndrive.layouts.table import Table"),
        ("gnndrive.engines.base", "from gnndrive.engines.uring import Uring"),
        ("gnndrive.store.reader", "from gnndrive._ffi import lib"),
        ("gnndrive.buffer", "from gnndrive.devices.host import Host"),
        ("gnndrive.buffer", "from gnndrive._core import lib"),
        ("gnndrive.pipeline.train", "def f():\n    from gnndrive.loader import NeighborLoader"),
        ("gnndrive.pipeline.train", "from gnndrive import NeighborLoader"),
        ("gnndrive.loader", "from gnndrive import cli"),
        ("gnndrive.report.live", "from ..loader import NeighborLoader"),
        ("gnndrive.__init__", "from gnndrive.cli import main"),
        ("gnndrive.attic", "import numpy"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(module: str, source: str):
    assert len(layer_findings(source, module.removesuffix(".__init__"))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gnndrive._ffi", "from gnndrive._core import ffi, lib"),
        (
            "gnndrive.engines.uring",
            "from gnndrive.engines.base import Engine\nimport gnndrive.records",
        ),
        ("gnndrive.engines.uring", "from gnndrive.layouts.base import Reads"),
        ("gnndrive.engines.uring", "from gnndrive.engines._listener import Listener"),
        ("gnndrive.engines.uring", "from gnndrive.engines import why_not_uring"),
        ("gnndrive.engines", "from gnndrive import plugins"),
        ("gnndrive.store.reader", "from gnndrive.store.format import parse\nfrom . import checks"),
        ("gnndrive.cli", "from gnndrive.loader import NeighborLoader"),
        ("gnndrive.report.live", "import rich, numpy"),
    ],
)
def test_an_import_that_goes_down_is_not(module: str, source: str):
    assert not layer_findings(source, module)


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
