"""Strategies and kinds of batches on a fake GPU; tests/gpu/test_kinds.py has the tests."""

from tests.fake_gpu.test_loader import way  # noqa: F401
from tests.gpu.test_kinds import *  # noqa: F403
from tests.gpu.test_kinds import stores, the_way  # noqa: F401

pytestmark: list[object] = []  # they need no GPU here
