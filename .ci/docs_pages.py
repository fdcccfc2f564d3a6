"""Pages of `make docs` that are not files of docs/: README.md, CONTRIBUTING.md and the API's.

mkdocs calls the functions named on_…. A new public name, a new kind of plug-in and a new page of
docs/ appear by themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gnndrive

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
FIRST_TASK = "start.md"
TITLES = {
    "loader": "Loaders",
    "pyg": "Samplers",
    "store": "Stores and importers",
    "common": "Errors",
}
"""Titles of the API's pages, by the folder of the public names on them; else the folder's name."""
FURTHER = {
    "Plans": ["gnndrive.plan.plan.Plan", "gnndrive.common.items.Item"],
    "PyG's remote backend": ["gnndrive.pyg.stores"],
    "Strategies": ["gnndrive.strategies"],
    "Testing": ["gnndrive.testing.simulation", "gnndrive.testing.loop", "gnndrive.testing.faults"],
}


def public_names() -> dict[str, list[str]]:
    """The public names of gnndrive by title of their page, as `module.name` of the definition."""
    modules = {name: module for module, names in gnndrive._MODULES.items() for name in names}
    found: dict[str, list[str]] = {}
    for name in sorted(gnndrive.__all__, key=str.lower):
        folder = modules[name].partition(".")[0]
        title = TITLES.get(folder, folder.capitalize())
        found.setdefault(title, []).append(f"gnndrive.{modules[name]}.{name}")
    return dict(sorted(found.items()))


def plugin_kinds() -> list[str]:
    """The modules that define the interfaces of plug-ins."""
    paths = sorted(ROOT.glob("gnndrive/*/*/base.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def api_pages() -> dict[str, str]:
    """The API's pages: Markdown by the name of the page's file."""
    described = public_names()
    for title, names in (FURTHER | {"Plug-ins": plugin_kinds()}).items():
        described.setdefault(title, []).extend(names)
    return {
        f"api/{re.sub('[^a-z]+', '-', title.lower())}.md": "\n\n".join(
            [f"# {title}", *(f"::: {name}" for name in names)]
        )
        for title, names in described.items()
    }


def top_page(name: str) -> str:
    """The text of a page that lies beside docs/, with links as they are in docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    link = r"\]\((?:docs/)?([^):]+\.md)"
    return re.sub(link, lambda found: f"]({PAGES.get(found[1], found[1])}", text)


def on_config(config: Any) -> Any:
    """Give mkdocs the navigation."""
    docs = ROOT / "docs"
    tasks = sorted(path.name for path in (docs / "tasks").glob("*.md"))
    tasks.sort(key=FIRST_TASK.__ne__)
    config.nav = [
        {"gnndrive": "index.md"},
        {"Tasks": [f"tasks/{name}" for name in tasks]},
        *(path.name for path in sorted(docs.glob("*.md"))),
        {"API": list(api_pages())},
        {"Contributing": "contributing.md"},
        {"Changes": "changes.md"},
    ]
    config.watch.extend([str(ROOT / "gnndrive"), *(str(ROOT / name) for name in PAGES)])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of docs/."""
    from mkdocs.structure.files import File

    pages = {page: top_page(name) for name, page in PAGES.items()} | api_pages()
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files
