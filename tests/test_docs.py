"""The documents are right: the snippets of docs/tasks run, each page twice in one folder;
README.md and docs/performance.md stay short; and every path and module that a document names
exists.

The checks are functions from text to findings, so that tests can show that they find what they
should.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from itertools import product
from pathlib import Path

import pytest

from tests.project_files import ROOT

TASKS = ROOT / "docs" / "tasks"
PAGES = sorted(TASKS.glob("*.md"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
README_LINES = 150
PERFORMANCE_WORDS = 1700
FOLDERS = ("gnndrive", "native", "tests", "bench", "docs")
OF_PACKAGE = [
    path.name for path in (ROOT / "gnndrive").iterdir() if (path / "__init__.py").exists()
]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_runs_twice(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for processes that a page starts elsewhere
    run_snippets(page)
    run_snippets(page)


def test_the_examples_of_contributing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets(ROOT / "CONTRIBUTING.md")
    run_snippets(ROOT / "CONTRIBUTING.md")


def run_snippets(page: Path) -> None:
    """Run the Python snippets of a page, in one namespace; one with a title is a file's content."""
    text = page.read_text(encoding="utf-8")
    head = r"^```python(?: title=\"([^\"]+)\")?\n(.*?)^```$"
    snippets = re.findall(head, text, re.MULTILINE | re.DOTALL)
    assert snippets
    names: dict[str, object] = {"__name__": "page"}
    for title, snippet in snippets:
        if title:
            Path(title).write_text(snippet, encoding="utf-8")
            continue
        before = text[: text.index(snippet)].count("\n")
        exec(compile("\n" * before + snippet, str(page), "exec"), names)


# ---- length


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < README_LINES


def test_performance_is_short() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert len(text.split()) < PERFORMANCE_WORDS


# ---- names


def alternatives(name: str) -> list[str]:
    """`a/{b,c}.py` → `a/b.py`, `a/c.py`."""
    parts = re.split(r"\{([^{}]*)\}", name)
    return ["".join(each) for each in product(*(part.split(",") for part in parts))]


def paths_in(text: str) -> set[str]:
    """The paths in the project's folders that a text names; those in a folder of the package may
    leave out `gnndrive/`."""
    found: set[str] = set()
    for folder in (*FOLDERS, *OF_PACKAGE):
        names = re.findall(rf"(?<![\w/.~-]){folder}/[\w./{{}},-]*[\w/}}]", text)
        before = "gnndrive/" if folder in OF_PACKAGE else ""
        found |= {before + path for name in names for path in alternatives(name)}
    return found


def modules_in(text: str) -> set[str]:
    """The dotted names below `gnndrive` that a text names, snippets included."""
    names = re.findall(r"(?<![\w./])gnndrive(?:\.\w+)+", text)
    return {name for name in names if not name.endswith(".gnn")}


def links_in(text: str) -> set[str]:
    """The targets of a text's links to files."""
    return {link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link}


def is_named(name: str) -> bool:
    """Whether a dotted name is a module or package, or an attribute of one."""
    so_far = "gnndrive"
    thing: object = importlib.import_module(so_far)
    for part in name.split(".")[1:]:
        so_far = f"{so_far}.{part}"
        if hasattr(thing, "__path__") and importlib.util.find_spec(so_far) is not None:
            thing = importlib.import_module(so_far)
        elif hasattr(thing, part):
            thing = getattr(thing, part)
        else:
            return False
    return True


def name_findings(text: str, folder: Path) -> list[str]:
    """Paths, modules and links in a text that do not exist; links count from `folder`."""
    findings = [f"no file {path}" for path in paths_in(text) if not (ROOT / path).exists()]
    findings += [f"no module {name}" for name in modules_in(text) if not is_named(name)]
    findings += [f"no target {link}" for link in links_in(text) if not (folder / link).exists()]
    return sorted(findings)


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
)
def test_every_name_exists(document: Path) -> None:
    assert not name_findings(document.read_text(encoding="utf-8"), document.parent)


# ---- the checks find what they should


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("`gnndrive/attic/old.py`", "no file gnndrive/attic/old.py"),
        ("(native/reads.c, native/lost.c)", "no file native/lost.c"),
        ("`buffer/policies/fifo.py`", "no file gnndrive/buffer/policies/fifo.py"),
        ("`gnndrive/disk/engines/{uring,rust}.py`", "no file gnndrive/disk/engines/rust.py"),
        ("`gnndrive.attic.Old`", "no module gnndrive.attic.Old"),
        ("`gnndrive.disk.engines.rust`", "no module gnndrive.disk.engines.rust"),
        ("[a page](docs/tasks/cooking.md)", "no file docs/tasks/cooking.md"),
        ("[a page](cooking.md)", "no target cooking.md"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, finding: str) -> None:
    assert finding in name_findings(text, ROOT)


@pytest.mark.parametrize(
    "text",
    [
        "`gnndrive/buffer/`, disk/engines/uring.py, native/ring.c.",
        "gnndrive/pipeline/{sample,train}.py",
        "`gnndrive.open`, gnndrive.buffer.policies.base.Policy, `open_store`",
        "build/gpu-bundle, papers.gnn, see [the tests](tests/README.md#x)",
    ],
)
def test_a_name_that_exists_is_not(text: str) -> None:
    assert not name_findings(text, ROOT)


def test_every_figure_was_measured():
    assert not [path.name for path in DOCUMENTS if "FIGURE" in path.read_text()]
