"""`kubectl get ddpjob` and `kubectl describe ddpjob` alone name the cause of a failure: rank, pod, node and message.

All failures are caused at the same time.
"""

import concurrent.futures
import re
from collections.abc import Mapping
from concurrent.futures import Future

import pytest

import testbed
from support.job_on_cluster import JobOnCluster, fresh_namespace
from support.seeded_failures import FAILURES, SeededFailure

#: With more at once, two cores are busy with the start of containers alone.
SIDE_BY_SIDE = 6


def play(failure: SeededFailure, cluster) -> tuple[str, str]:
    """Cause the failure; gives what `kubectl get` and `kubectl describe` show of it at the end."""
    with fresh_namespace(cluster.kubectl) as namespace:
        job = JobOnCluster(cluster.kubectl, namespace)
        failure.apply(job)
        if failure.fault:
            job.wait_phase("Running")
            failure.fault(cluster, job)
        try:
            testbed.wait_for(
                f"job {job.name} to fail by {failure.reason}",
                lambda: job.status.get("reason") == failure.reason,
            )
            job.wait_phase("Failed")
            if failure.logged:
                testbed.wait_for(
                    f"{failure.logged} in the log of the rank that failed",
                    lambda: re.search(failure.logged, job.log(1, failure.rank or 0)),
                )
            return job.kubectl("get", "ddpjob", job.name, "-n", job.namespace), with_event(job, failure.reason)
        except testbed.DeadlineError as error:
            raise AssertionError(f"{error}\n{describe(job)}\n{job.report()}") from error


def describe(job: JobOnCluster) -> str:
    return job.kubectl("describe", "ddpjob", job.name, "-n", job.namespace)


def with_event(job: JobOnCluster, reason: str) -> str:
    """The description, once it has an Event of this reason."""
    return testbed.wait_for(
        f"kubectl describe to show an Event {reason} of job {job.name}",
        lambda: text if f" {reason} " in (text := describe(job)).partition("\nEvents:")[2] else None,
    )


@pytest.fixture(scope="module")
def outcomes(cluster, installed_operator: None) -> Mapping[str, Future[tuple[str, str]]]:  # noqa: ARG001
    """What kubectl showed of each failure that can be caused here, by its name."""
    mine = isinstance(cluster, testbed.Cluster)
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return {f.name: pool.submit(play, f, cluster) for f in FAILURES if mine or not f.needs_machine}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_get_and_describe_name_the_cause(
    failure: SeededFailure, outcomes: Mapping[str, Future[tuple[str, str]]]
) -> None:
    if failure.name not in outcomes:
        pytest.skip("E2E_KUBECONFIG names a cluster whose nodes cannot be broken from here")
    table, description = outcomes[failure.name].result()
    print(table, description)
    assert table.split()[-2] == failure.reason, "REASON is the last column but one"
    said = " ".join(description.partition("\nStatus:\n")[2].split())
    missing = [pattern for pattern in failure.patterns if not re.search(pattern, said)]
    assert not missing, f"the status says nothing of {missing}"
    if failure.rank is not None:
        pod = f"{failure.name}-1-{failure.rank}"
        record = rf"Failure: Attempt: 1 .*Node: \S+ Pod: {pod} Rank: {failure.rank} Reason: {failure.reason} "
        assert re.search(record, said), f"no record of rank {failure.rank} with pod, node and {failure.reason}"
