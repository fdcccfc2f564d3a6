"""Pages of runs, and what is in them."""

import json
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gnndrive.cli.report.html import page, read_run

VOID = {"meta", "link", "br"}


class Shown(HTMLParser):
    """Reads a page; fails if its elements are not closed in order.

    Attributes:
        texts: every text outside of the style, in order.
        tags: every element's name and attributes.
    """

    def __init__(self, content: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        """All texts, one a line."""
        return "\n".join(self.texts)


PageOf = Callable[..., str]


def page_in(folder: Path, *runs: dict[str, Any]) -> str:
    paths = [folder / f"run{number}.json" for number in range(1, len(runs) + 1)]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run))
    return page(paths, [read_run(path) for path in paths])


@pytest.fixture
def page_of(tmp_path: Path) -> PageOf:
    """page_of(run, …) is the page of runs."""
    return partial(page_in, tmp_path)
