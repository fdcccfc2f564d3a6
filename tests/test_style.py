"""How long files, functions and lines are, and what no file may say.

Each check is a function from text to findings, so that the tests at the end can show that it finds
what it should.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project_files import ROOT, files, named

FILE_LINES = 400
FUNCTION_LINES = 70
COLUMNS = 100
SPOKEN = (".py", ".c", ".h", ".md", ".toml", ".cfg", ".ini", ".sh", ".yml", ".yaml", ".in")
# The brackets keep these patterns from finding themselves.
FORBIDDEN = {
    "a registry host": re.compile(r"pypi[.]org|pythonhosted[.]|pytorch[.]org/whl", re.I),
    "unfinished work": re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"),
}
SKIPS = re.compile(r"mark[.](skip|skipif|xfail)\b|pytest[.](skip|xfail|importorskip)[(]")
MAY_SKIP = re.compile(r"tests/gpu/|tests/test_facebook[.]py: +pytest[.]skip[(]missing[)]$")


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
    functions = c_functions if name.endswith((".c", ".h")) else python_functions
    findings = [
        f"{name}:{number} has {len(line)} columns"
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS
    ]
    if len(lines) >= FILE_LINES:
        findings.append(f"{name} has {len(lines)} lines")
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
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        yields = [ast.unparse(argument) for argument in node.args] == ["0"]
        if called.split(".")[-1] == "sleep" and not (yields and called != "time.sleep"):
            findings.append(f"{name}:{node.lineno} calls {ast.unparse(node)}")
    return findings


# ---- the project


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


def test_a_test_may_be_skipped_where_its_gpu_or_data_is_missing():
    gpu = "@pytest.mark.sk~ipif(not torch.cuda.is_available())".replace("~", "")
    data = "        pytest.sk~ip(missing)".replace("~", "")
    assert not word_findings(gpu, "tests/gpu/a.py") + word_findings(data, "tests/test_facebook.py")
    found = word_findings(gpu, "tests/test_facebook.py") + word_findings(data, "tests/test_docs.py")
    assert len(found) == 2


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
