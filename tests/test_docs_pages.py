"""`make docs` shows every public name and every page, because it finds them by itself."""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace

import pytest

import gnndrive
from gnndrive.common import plugins
from tests.project_files import ROOT
from tests.test_tidy import KINDS


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / ".ci" / "docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_described(pages: ModuleType) -> None:
    described = [name for names in pages.public_names().values() for name in names]
    assert sorted(name.rpartition(".")[2] for name in described) == sorted(gnndrive.__all__)
    for name in described:
        module, _, leaf = name.rpartition(".")
        assert getattr(importlib.import_module(module), leaf) is getattr(gnndrive, leaf)


def test_so_is_every_kind_of_plug_in(pages: ModuleType) -> None:
    assert pages.plugin_kinds() == sorted(f"gnndrive.{kind}.base" for kind in KINDS)
    assert all(plugins.names(kind.split(".")[1]) for kind in KINDS)


def test_every_page_is_in_the_navigation(pages: ModuleType) -> None:
    config = pages.on_config(SimpleNamespace(nav=None, watch=[]))
    listed = set(leaves(config.nav))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert listed == written | set(pages.PAGES.values()) | set(pages.api_pages())


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def test_links_of_the_readme_are_those_of_docs(pages: ModuleType) -> None:
    text = pages.top_page("README.md")
    assert "](docs/" not in text
    assert "](tasks/import.md)" in text
