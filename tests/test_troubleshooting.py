"""Every message that docs/troubleshooting.md quotes is still in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project_files import ROOT, files, named

PAGE = ROOT / "docs" / "troubleshooting.md"
BETWEEN = "…"


def texts(source: str) -> Iterator[str]:
    """All texts in a module that a message can be; what is computed in them becomes "…"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else BETWEEN
                for part in node.values
            )
            yield "".join(parts)


def quoted(page: str) -> list[str]:
    """The messages in the first columns of a page's tables."""
    return re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)


def is_said(message: str, said: list[str]) -> bool:
    """Whether the fixed parts of a message stand in one of the texts, in their order."""
    parts = message.strip(BETWEEN).split(BETWEEN)
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in said)


@pytest.fixture(scope="module")
def said() -> list[str]:
    sources = [path for path in files(".py") if named(path).startswith("gnndrive/")]
    return [text for path in sources for text in texts(path.read_text(encoding="utf-8"))]


MESSAGES = quoted(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_still_in_the_code(message: str, said: list[str]) -> None:
    assert is_said(message, said)


def test_the_page_has_messages_and_is_short() -> None:
    assert 25 <= len(MESSAGES) <= 55
    assert len(MESSAGES) == len(set(MESSAGES))


def test_a_message_that_is_not_there_is_found() -> None:
    source = 'raise E(f"the disk {name} is " "full: free " f"{n} bytes")'
    assert quoted("| `the … is full` | why | do |\n| message |") == ["the … is full"]
    assert is_said("the … is full", list(texts(source)))
    assert is_said("… is full: free … bytes", list(texts(source)))
    assert not is_said("the … is empty", list(texts(source)))
    assert not is_said("full: … the disk", list(texts(source)))
