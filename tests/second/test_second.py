"""The second implementations know no other implementation."""

from pathlib import Path

from gnndrive.common import plugins
from tests import second
from tests.test_tidy import imported, kind_of


def test_there_is_one_of_each_kind_and_they_import_no_other_implementation():
    assert second.SECOND.keys() == plugins.KINDS.keys()
    source = Path(second.__file__).read_text()
    modules = [module for _, module in imported(source, "tests.second", True)]
    assert {kind_of(module)[1] for module in modules} == {"", "base", "shared"}
