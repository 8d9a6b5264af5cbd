"""With each kind of fault between the operator and the API server, all jobs end as they do without faults."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import testbed
from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess
from support.scripted_jobs import ScriptedJobs
from support.supervised_operator import SupervisedOperator
from testbed.faultproxy import FaultProxy
from testbed.faults import WRITES, Answer, CutStream, Delay, Fault, LoseAnswer, LoseRequest, StreamError

SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault, where, and how often."""

    fault: Fault
    verbs: tuple[str, ...] = ()
    probability: float


FAULTS = {
    "409": Injected(fault=Answer(409), verbs=WRITES, probability=0.3),
    "429": Injected(fault=Answer(429, retry_after_seconds=1), probability=0.3),
    "500": Injected(fault=Answer(500), probability=0.3),
    "503": Injected(fault=Answer(503), probability=0.3),
    "delay": Injected(fault=Delay(0.0, 1.0), probability=0.5),
    "lost request": Injected(fault=LoseRequest(), probability=0.3),
    "lost answer": Injected(fault=LoseAnswer(), probability=0.3),
    "cut watch": Injected(fault=CutStream(), verbs=("watch",), probability=0.3),
    "watch cut in a line": Injected(fault=CutStream(mid_line=True), verbs=("watch",), probability=0.3),
    "410 in a watch": Injected(fault=StreamError(410), verbs=("watch",), probability=0.2),
    "500 in a watch": Injected(fault=StreamError(500), verbs=("watch",), probability=0.05),
}
#: Those that found defects when the engine was broken on purpose (README.md). The others strike on each change in the
#: test of all kinds at once, and alone in `make nightly`.
ALONE_ON_EACH_CHANGE = ("503", "lost answer", "watch cut in a line", "410 in a watch")


@pytest.fixture(scope="module")
def supervised(running_proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedOperator]:
    process = OperatorProcess(running_proxy.kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    with SupervisedOperator(process) as supervised:
        yield supervised


@pytest.fixture
def jobs(namespace: Namespace, cluster: testbed.ControlPlane) -> ScriptedJobs:
    return ScriptedJobs(namespace, cluster)


async def all_kinds_end_as_scripted(jobs: ScriptedJobs) -> None:
    async with jobs.carry_out():
        await jobs.apply_all(0, 1)
        await jobs.end_as_scripted(SECONDS)


@pytest.mark.usefixtures("supervised")
async def test_without_a_fault(jobs: ScriptedJobs) -> None:
    await all_kinds_end_as_scripted(jobs)


async def test_a_watch_of_jobs_that_ends_in_an_error_does_not_end_the_process(
    jobs: ScriptedJobs, proxy: FaultProxy, supervised: SupervisedOperator
) -> None:
    num_ended = len(supervised.exits)
    rule = proxy.inject(StreamError(500), verbs=("watch",), target="/ddpjobs", skip=5, times=1)
    async with jobs.carry_out():
        for number in range(2):
            await jobs.apply_all(number)
        await jobs.end_as_scripted(SECONDS)
    assert rule.num_struck == 1
    assert len(supervised.exits) == num_ended  # kopf ends at any error but 410, and is started again within the process


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ALONE_ON_EACH_CHANGE else pytest.mark.nightly) for kind in FAULTS]
)
async def test_with_one_kind_of_fault(
    kind: str, jobs: ScriptedJobs, proxy: FaultProxy, supervised: SupervisedOperator
) -> None:
    injected = FAULTS[kind]
    num_ended = len(supervised.exits)
    rule = proxy.inject(injected.fault, verbs=injected.verbs, probability=injected.probability)
    await all_kinds_end_as_scripted(jobs)
    print(f"{kind}: struck {rule.num_struck} times")
    assert rule.num_struck > 2
    assert len(supervised.exits) == num_ended


@pytest.mark.usefixtures("supervised")
async def test_with_all_kinds_of_faults_at_once(jobs: ScriptedJobs, proxy: FaultProxy) -> None:
    rules = {
        kind: proxy.inject(injected.fault, verbs=injected.verbs, probability=injected.probability / 5)
        for kind, injected in FAULTS.items()
    }
    await all_kinds_end_as_scripted(jobs)
    print({kind: rule.num_struck for kind, rule in rules.items()})
    for group in (Answer, Delay, (LoseRequest, LoseAnswer), (CutStream, StreamError)):  # each strikes 20 times or more
        assert sum(rule.num_struck for rule in rules.values() if isinstance(rule.fault, group)) > 0, group


@pytest.mark.usefixtures("supervised")
async def test_with_an_api_server_that_is_killed_in_the_middle(
    jobs: ScriptedJobs, cluster: testbed.ControlPlane
) -> None:
    api_server = cluster.components["kube-apiserver"]
    async with jobs.carry_out():
        for number in range(3):
            await jobs.apply_all(number)
            api_server.kill()
            await asyncio.to_thread(api_server.start)
        await jobs.end_as_scripted(SECONDS, audit_has_gaps=True)
