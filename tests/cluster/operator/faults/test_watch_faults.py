"""Watches that fall silent, and lists whose next page has expired.

The operator is the real one, except that it waits for seconds where the real one waits for minutes.
"""

from collections.abc import Iterator

import pytest

import testbed
from support import REPOSITORY
from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess
from support.scripted_jobs import SCRIPTS, ScriptedJobs
from support.supervised_operator import SupervisedOperator
from testbed.faultproxy import FaultProxy
from testbed.faults import Answer, Silence, StreamError

IMPATIENT = REPOSITORY / "tests/support/impatient_operator.py"
SECONDS = 300.0


@pytest.fixture(scope="module", autouse=True)
def supervised(running_proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedOperator]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with SupervisedOperator(OperatorProcess(running_proxy.kubeconfig, log, program=(str(IMPATIENT),))) as supervised:
        yield supervised


@pytest.fixture
async def jobs(namespace: Namespace, cluster: testbed.ControlPlane) -> ScriptedJobs:
    jobs = ScriptedJobs(namespace, cluster)
    for kind in SCRIPTS:
        await jobs.apply(kind)
    return jobs


@pytest.mark.parametrize("resource", ["pods", "services", "ddpjobs"])
async def test_a_silent_watch_is_ended_and_started_again(resource: str, jobs: ScriptedJobs, proxy: FaultProxy) -> None:
    rule = proxy.inject(Silence(), verbs=("watch",), target=f"/{resource}", times=5, probability=0.5)
    async with jobs.carry_out():
        await jobs.end_as_scripted(SECONDS)
    assert rule.num_struck


async def test_a_list_whose_next_page_has_expired_starts_again(jobs: ScriptedJobs, proxy: FaultProxy) -> None:
    proxy.inject(StreamError(410), verbs=("watch",), target="/(pods|services)", probability=0.3)  # So it must list.
    # Ten times at most: with many pages hardly any list would be complete.
    rule = proxy.inject(Answer(410), verbs=("read",), target="continue=", probability=0.3, times=10)
    async with jobs.carry_out():
        await jobs.end_as_scripted(SECONDS)
    assert rule.num_struck
