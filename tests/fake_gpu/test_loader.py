"""The whole loader on a fake GPU; tests/gpu/test_loader.py has the tests."""

from tests.gpu.test_loader import *  # noqa: F403
from tests.gpu.test_loader import losses, the_way  # noqa: F401

pytestmark: list[object] = []  # they need no GPU here
