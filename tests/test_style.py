"""What no file may say, and what each module must.

Each check is a function from text to findings, so that the tests at the end can show that it finds
what it should.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.project_files import ROOT, files, named

SPOKEN = (".py", ".c", ".h", ".md", ".toml", ".cfg", ".ini", ".sh", ".yml", ".yaml", ".in")
# The brackets keep these patterns from finding themselves.
FORBIDDEN = {
    "a registry host": re.compile(r"pypi[.]org|pythonhosted[.]|pytorch[.]org/whl", re.I),
    "unfinished work": re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b"),
}
SKIPS = re.compile(r"mark[.](skip|skipif|xfail)\b|pytest[.](skip|xfail|importorskip)[(]")
MAY_SKIP = re.compile(r"tests/gpu/|tests/test_facebook[.]py: +pytest[.]skip[(]missing[)]$")


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
