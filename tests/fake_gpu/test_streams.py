"""Which stream waits for which, in virtual time; tests/gpu/test_streams.py has the tests."""

import pytest

from gnndrive.testing.fake_cuda import FakeCuda
from tests.gpu.test_streams import *  # noqa: F403

pytestmark: list[object] = []  # they need no GPU here
# In these two streams use the same slots, to see which is ahead.
SAME_SLOTS = "test_scatters_and_training_do_not_wait_for_each_other"


@pytest.fixture(autouse=True)
def races(request: pytest.FixtureRequest, gpus: FakeCuda) -> None:
    gpus.memory.races = request.node.originalname != SAME_SLOTS


# The virtual time of a busy stream passes at once when a thread waits for it.
del test_waiting_leaves_the_event_loop_free  # noqa: F821
# A fake GPU's memory is the host's.
del test_slots_beyond_four_gigabytes  # noqa: F821
