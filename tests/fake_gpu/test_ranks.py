"""Ranks on fake GPUs; tests/gpu/test_ranks.py has the tests."""

import pytest

from tests.gpu.test_ranks import *  # noqa: F403

pytestmark = [pytest.mark.xdist_group("processes")]


@pytest.fixture(params=[True, False], ids=["cupy", "torch"])
def fake(request):
    """Whether there is a CuPy."""
    return [request.param]
