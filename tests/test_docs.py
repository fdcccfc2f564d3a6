"""The documents are right: their snippets run, and what they name exists."""

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gnndrive
from gnndrive.cli.main import main
from gnndrive.common import plugins
from gnndrive.strategies import STRATEGIES
from tests import forked
from tests.project_files import ROOT, ci_script, files, named
from tests.test_tidy import KINDS

PAGES = [*sorted((ROOT / "docs" / "tasks").glob("*.md")), ROOT / "CONTRIBUTING.md"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
README_LINES = 150
PERFORMANCE_WORDS = 1700
FOLDERS = ("gnndrive", "native", "tests", "bench", "docs")
OF_PACKAGE = [
    path.name for path in (ROOT / "gnndrive").iterdir() if (path / "__init__.py").exists()
]
BETWEEN = "…"


# ---- snippets


@pytest.mark.filterwarnings(
    "ignore:Checkpoint directory", "ignore:Be aware that when", "ignore:You defined a"
)  # Lightning's, of its own checkpoints and of a model without validation
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    """In one namespace; a snippet with a title is a file's content, and one in sh has commands of
    gnndrive. The processes that a page starts are forked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", forked.interpreter(tmp_path))
    text = page.read_text(encoding="utf-8")
    head = r"^```(python|sh)(?: title=\"([^\"]+)\")?\n(.*?)^```$"
    snippets = re.findall(head, text, re.MULTILINE | re.DOTALL)
    assert snippets
    names: dict[str, object] = {"__name__": "page"}
    for language, title, snippet in snippets:
        if title:
            Path(title).write_text(snippet, encoding="utf-8")
            continue
        if language == "sh":
            for command in snippet.replace("\\\n", "").splitlines():
                name, *words = shlex.split(command, comments=True)
                assert (name, main(words)) == ("gnndrive", 0), command
            continue
        before = text[: text.index(snippet)].count("\n")
        exec(compile("\n" * before + snippet, str(page), "exec"), names)


# ---- length


def test_the_pages_that_everybody_reads_are_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < README_LINES
    assert len((ROOT / "docs" / "performance.md").read_text().split()) < PERFORMANCE_WORDS


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
    links = {link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link}
    findings = [f"no file {path}" for path in paths_in(text) if not (ROOT / path).exists()]
    findings += [f"no module {name}" for name in modules_in(text) if not is_named(name)]
    findings += [f"no target {link}" for link in links if not (folder / link).exists()]
    return sorted(findings)


def test_every_name_exists_and_every_figure_was_measured():
    texts = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
    assert not [each for path in DOCUMENTS for each in name_findings(texts[path], path.parent)]
    assert not [path for path, text in texts.items() if "FIGURE" in text]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("`gnndrive/disk/engines/{uring,rust}.py`", "no file gnndrive/disk/engines/rust.py"),
        ("`gnndrive.disk.engines.rust`", "no module gnndrive.disk.engines.rust"),
        ("[a page](cooking.md)", "no target cooking.md"),
        ("`gnndrive/buffer/`, disk/engines/uring.py, native/ring.c.", None),
        ("build/gpu-bundle, papers.gnn, see [the tests](tests/README.md#x)", None),
    ],
)
def test_a_name_that_does_not_exist_is_found(text, finding):
    assert name_findings(text, ROOT) == ([finding] if finding else [])


# ---- the strategies


@pytest.mark.parametrize("page", ["README.md", "docs/tasks/strategies.md"])
def test_the_table_of_strategies_has_the_words_of_the_code(page):
    lines = (ROOT / page).read_text(encoding="utf-8").replace("`", "").splitlines()
    words = [
        (each.name, each.published, each.does, each.preparation, each.disk, each.changes, each.pays)
        for each in STRATEGIES.values()
    ]
    rows = [f"| {' | '.join(each)} |" for each in words]
    first = lines.index(rows[0])
    assert lines[first : first + len(rows)] == rows


# ---- messages that docs/troubleshooting.md quotes


def texts(source: str) -> Iterator[str]:
    """All texts in a module that a message can be; what is computed in them becomes "…"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else BETWEEN for part in node.values
            )
            yield "".join(map(str, parts))


def is_said(message: str, said: list[str]) -> bool:
    """Whether the fixed parts of a message stand in one of the texts, in their order."""
    parts = message.strip(BETWEEN).split(BETWEEN)
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(map(pattern.search, said))


def test_every_quoted_message_is_still_in_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert 25 <= len(messages) == len(set(messages)) <= 60
    sources = [path for path in files(".py") if named(path).startswith("gnndrive/")]
    said = [text for path in sources for text in texts(path.read_text(encoding="utf-8"))]
    assert not [message for message in messages if not is_said(message, said)]


def test_a_message_that_is_not_there_is_found():
    said = list(texts('raise E(f"the disk {name} is " "full: free " f"{n} bytes")'))
    assert is_said("the … is full", said)
    assert is_said("… is full: free … bytes", said)
    assert not is_said("the … is empty", said)
    assert not is_said("full: … the disk", said)


# ---- make docs


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return ci_script("docs_pages.py")


def test_every_public_name_and_kind_of_plug_in_is_described(pages):
    described = [name for names in pages.public_names().values() for name in names]
    assert sorted(name.rpartition(".")[2] for name in described) == sorted(gnndrive.__all__)
    for name in described:
        module, _, leaf = name.rpartition(".")
        assert getattr(importlib.import_module(module), leaf) is getattr(gnndrive, leaf)
    shown = "\n".join(pages.api_pages().values())
    assert all(f"::: {name}" in shown.splitlines() for name in described)
    assert pages.plugin_kinds() == sorted(f"gnndrive.{kind}.base" for kind in KINDS)
    assert all(plugins.names(kind.split(".")[1]) for kind in KINDS)


def test_every_page_is_in_the_navigation(pages):
    def leaves(nav):
        if isinstance(nav, str):
            return {nav}
        return set().union(*map(leaves, nav.values() if isinstance(nav, dict) else nav))

    config = pages.on_config(SimpleNamespace(nav=None, watch=[]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert leaves(config.nav) == written | set(pages.PAGES.values()) | set(pages.api_pages())
    text = pages.top_page("README.md")
    assert ("](docs/" in text, "](tasks/import.md)" in text) == (False, True)
