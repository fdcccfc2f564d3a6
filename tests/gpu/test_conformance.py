"""The tests of tests/buffer/devices, on a GPU: with this folder's fixtures."""

import pytest

from tests.buffer.devices.test_conformance import *  # noqa: F403
from tests.buffer.devices.test_drivers import *  # noqa: F403

pytestmark = pytest.mark.gpu
