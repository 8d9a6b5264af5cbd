import pytest

from ddpjob_trainer.config import parse_config
from ddpjob_trainer.watch.timeline import Timeline
from ddpjob_trainer.watch.watchdog import Watchdog


@pytest.mark.filterwarnings("error")  # an exception in the thread that asks is told by a warning
def test_nobody_can_be_asked():
    watchdog = Watchdog(parse_config({"recipe": "digits"}), Timeline())
    assert watchdog.name_lost_peer() == ""
    watchdog.say_farewell("the disk is on fire")
