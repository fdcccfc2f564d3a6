"""The second implementations are found by class, and know no other implementation."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnndrive.common import plugins
from tests.second import SECOND
from tests.test_tidy import imported, kind_of


@pytest.mark.parametrize(("kind", "second"), SECOND.items())
def test_a_class_is_taken_where_a_name_is(kind, second):
    assert plugins.find(kind, second) is second
    assert plugins.name_of(second) not in plugins.names(kind)


def test_there_is_one_of_each_kind():
    assert SECOND.keys() == plugins.KINDS.keys()


def test_they_import_no_other_implementation():
    found = [
        f"{path.name} imports {module}"
        for path in sorted(Path(__file__).parent.glob("*.py"))
        for _, module in imported(path.read_text(), f"tests.second.{path.stem}", False)
        if kind_of(module)[1] not in ("", "base", "shared")
    ]
    assert not found
