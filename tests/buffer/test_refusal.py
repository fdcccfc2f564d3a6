"""The smallest `buffer=` that the error for a batch too large names."""

from __future__ import annotations

import errno
import re
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.buffer.refusal import raise_refusal
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_ranks_with_buffers_of_their_own_need_one_each(buffers):
    tables: Any = {"nodes/x": SimpleNamespace(slots=1_000, row_bytes=512, batch_rows_max=3_000)}
    with pytest.raises(ConfigError, match="but a batch needs 1,250") as caught:
        raise_refusal(tables, buffers, "nodes/x", -errno.ENOSPC, 250)
    text = str(caught.value)
    sizes = re.findall(r'buffer="(\w+)"| \((\w+) holds any batch\)', text)
    named, any_batch = (parse_size(one or other, "buffer") for one, other in sizes)
    for given, rows in ((named, 1_250), (any_batch, 3_000)):
        assert given // buffers // 512 >= rows
        assert (given - 1_000) // buffers // 512 < rows
    assert (f"for all {buffers} ranks of this host" in text) is (buffers > 1)
