"""The snippets in the pages of docs/tasks run; those of one page run one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TASKS = Path(__file__).resolve().parent.parent / "docs" / "tasks"
PAGES = sorted(TASKS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert snippets
    names: dict[str, object] = {"__name__": "page"}
    for snippet in snippets:
        before = text[: text.index(snippet)].count("\n")
        exec(compile("\n" * before + snippet, str(page), "exec"), names)
