"""Commands and programs on fake GPUs; tests/gpu/test_commands.py has the tests."""

from tests.gpu.test_commands import *  # noqa: F403

pytestmark: list[object] = []  # they need no GPU here
