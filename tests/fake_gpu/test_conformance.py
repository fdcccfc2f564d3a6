"""What every device and every driver must do: the tests of tests/buffer/devices."""

from tests.buffer.devices.test_conformance import *  # noqa: F403
from tests.buffer.devices.test_drivers import *  # noqa: F403
