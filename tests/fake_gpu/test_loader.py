"""The whole loader on a fake GPU; tests/gpu/test_loader.py has the tests."""

import pytest

from gnndrive.buffer.devices._kernels import WAYS
from tests.gpu.test_loader import *  # noqa: F403
from tests.gpu.test_loader import losses, the_way  # noqa: F401
from tests.soak import SOAKING

pytestmark: list[object] = []  # they need no GPU here


@pytest.fixture(
    params=[pytest.param(way, marks=pytest.mark.soak) for way in (WAYS if SOAKING else WAYS[:1])]
)
def way(request):
    """The ways move the same rows (tests/buffer/devices): a loader shows one, a soak all."""
    return request.param


# Inductor compiles for a real GPU only.
del test_a_compiled_model_trains_like_one_that_is_not  # noqa: F821
