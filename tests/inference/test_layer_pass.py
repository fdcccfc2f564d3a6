"""A pass ends with no read under way, however it ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gnndrive.inference import infer
from gnndrive.inference.row_cache import RowReads
from tests.inference.conftest import least_memory


class Waited:
    """A future that records whether its result or exception was taken."""

    def __init__(self, future: Any) -> None:
        self._future, self.waited = future, False

    def result(self) -> Any:
        self.waited = True
        return self._future.result()

    def exception(self) -> Any:
        self.waited = True
        return self._future.exception()


@pytest.mark.parametrize("raises", [False, True])
def test_files_are_closed_when_nothing_is_being_read(raises, hetero_store, monkeypatch):
    start, close, reads = RowReads.start, RowReads.close_files, list[Waited]()
    left_open = list[int]()

    def started(self: RowReads, *given: Any) -> Any:
        reads.append(Waited(start(self, *given)))
        return reads[-1]

    def closed(self: RowReads) -> None:
        left_open.append(sum(not each.waited for each in reads))
        close(self)

    def only_authors(x: Any, edge_index: Any) -> Any:
        if raises and len(reads) > 4:
            raise ZeroDivisionError
        return {"author": x["author"]}

    monkeypatch.setattr(RowReads, "start", started)
    monkeypatch.setattr(RowReads, "close_files", closed)
    run = partial(infer, [only_authors], hetero_store, batch_size=4)
    memory = least_memory(run) + 3000  # a few slots are free for the next block's rows
    if raises:
        with pytest.raises(ZeroDivisionError):
            run(memory=memory)
    else:
        run(memory=memory)
    assert len(reads) > 4
    assert left_open
    assert not any(left_open)
