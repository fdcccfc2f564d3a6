"""The switches of the CUDA device on fake GPUs; tests/gpu/test_switches.py has the tests."""

from tests.gpu.test_switches import *  # noqa: F403

pytestmark: list[object] = []  # they need no GPU here
