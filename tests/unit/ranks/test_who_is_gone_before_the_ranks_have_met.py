import pytest

from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_ranks.watch.watchdog import Watchdog


@pytest.mark.filterwarnings("error")  # an exception in the thread that asks is told by a warning
def test_nobody_can_be_asked():
    watchdog = Watchdog(Limits(first_step_seconds=600, step_seconds=300), Timeline())
    assert watchdog.name_lost_peer() == ""
    watchdog.say_farewell("the disk is on fire")
