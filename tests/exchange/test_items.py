"""What ranks that exchange rows take for rows that other ranks own, to the byte."""

from dataclasses import replace

from gnndrive.common.items import Shape, TableShape
from gnndrive.common.owners import Owners
from gnndrive.exchange.items import Exchange


def test_remote_rows():
    tables = TableShape("x", 500, 100, 80, 80), TableShape("a", 20, 62, 40, 90)
    owners = {"x": Owners(1_000, 2, 3), "a": Owners(40, 2, 0)}
    shape = Shape(tables, 170, 0, 0, 0, queued=10, extracted=4, samplers=1)
    exchange = Exchange(owners, 0, range(2), {})

    def items(nbytes):
        found = {n.what: n.nbytes for n in replace(exchange, kept_bytes=nbytes).items(shape)}
        return [n for what, n in found.items() if what not in {*without}]

    without = {n.what for n in exchange.items(shape)}
    held = 170 * (16 * 10 + 36)
    batch = 80 * 138 + 90 * 100  # with their entries in the slot tables
    for batches in (0.1, 0.2):
        assert items(int(batches * batch)) == [batches * batch, 4 * 1_040, held]
    assert items(10**9) == [496 * 138 + 20 * 100, 4 * 1_040, held], "no more than all"
    assert items(0) == []
