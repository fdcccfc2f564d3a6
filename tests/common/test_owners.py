"""Who owns which rows, for any number of owners and rows."""

from itertools import product

import numpy as np
import pytest

from gnndrive.common.owners import Owners


@pytest.mark.parametrize(
    ("rows", "world", "shift"), list(product((1, 7, 64, 65, 1000), (1, 2, 3, 5), (0, 3, 6, 40)))
)
def test_each_row_has_an_owner_and_a_number(rows, world, shift):
    owners, far = Owners(rows, world, shift), 1 << min(33 + shift, 61)
    asked = np.random.default_rng(0).permutation(np.r_[-9:rows, rows : 2 * rows, far : far + 9])
    values, found = np.arange(rows), np.full(len(asked), -1)
    for owner, (places, numbers) in enumerate(owners.split(asked)):
        assert np.array_equal(owners.rows_of(owner, numbers), asked[places])
        assert np.array_equal(owners.numbers(asked[places]), numbers)
        inside = (numbers >= 0) & (numbers < owners.count(owner))
        assert np.array_equal(inside, (asked[places] >= 0) & (asked[places] < rows))
        assert np.all(np.diff(places) > 0)
        found[places] = owner
        own = owners.rows_of(owner, np.arange(owners.count(owner)))
        assert np.array_equal(owners.values_of(owner, values), own)
    assert found.min() >= 0


@pytest.mark.parametrize("rows", [1 << 17, 100_003, 10_000_000])
def test_owners_have_about_as_many_rows(rows):
    for world in (2, 3, 16):
        owners = Owners.of(rows, 512, world)
        counts = [owners.count(owner) for owner in range(world)]
        assert sum(counts) == rows
        assert max(counts) <= 1.1 * rows / world
