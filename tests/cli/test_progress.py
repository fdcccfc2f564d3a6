"""Bars show the names of jobs as they are: without markup or emoji."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gnndrive.cli.commands.progress import Bars


@pytest.mark.parametrize("terminal", [True, False])
def test_a_name_is_shown_as_it_is(terminal: bool):
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=terminal, width=100)) as bars:
        bars("rows nodes:x: [bold]", 1, 4)
        bars("rows nodes:x: [bold]", 4, 4)
    assert "rows nodes:x: [bold]" in out.getvalue()
    assert "100 %" in out.getvalue()
