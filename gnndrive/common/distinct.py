"""`distinct`: the distinct numbers of an array, by sorting them.

`numpy.unique` of numpy 2.3 and later hashes integers, which takes 0.73 s for 850,000 of them;
sorting takes 0.04 s. When not to use it: for counts, places or the inverse; numpy sorts for these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct numbers of an array of one dimension, ascending, in its dtype."""
    found = np.sort(numbers)
    first = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]
