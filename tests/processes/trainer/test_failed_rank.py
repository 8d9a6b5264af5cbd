import pytest

from ddpjob_ranks import contract
from support.forked_ranks import started
from support.training_runs import finished


@pytest.mark.parametrize("ranks", [1, 2])
def test_missing_data_are_reported_with_the_expected_layout(tmp_path, ranks):
    environ = {contract.DDPJOB_DATA_DIR: str(tmp_path / "nothing")}
    with started(tmp_path, "recipe=resnet18-cifar10", ranks=ranks, environ=environ) as run:
        assert run.wait() == ranks * [contract.EXIT_BAD_CONFIG]
    assert "nothing/train; expected train/<class>/*.jpg" in run.message()
    assert "Traceback" not in run.text()


def test_a_mistake_that_all_ranks_find_is_reported_once(tmp_path):
    """Outside a cluster, where there is no file for the termination message."""
    absent = {contract.DDPJOB_TERMINATION_LOG: str(tmp_path / "absent")}
    run = finished(tmp_path, "settings.x=1", ranks=2, environ=absent, expected=contract.EXIT_BAD_CONFIG)
    assert run.text.count("config: settings has x, but recipe digits has no settings; remove it") == 1
