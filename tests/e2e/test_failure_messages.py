"""`kubectl get ddpjob` and `kubectl describe ddpjob` alone name the cause of a failure: rank, pod, node and message.

All failures are caused at the same time, except the one that takes a node away. What a user sees is written to one file
per failure in the directory that E2E_TRANSCRIPTS names.
"""

import concurrent.futures
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

import testbed
from support.job_on_cluster import JobOnCluster, fresh_namespace
from support.job_watch import JobWatch, Row
from support.seeded_failures import FAILURES, NODE_LOSS, SeededFailure

#: With more at once, two cores are busy with the start of containers alone.
SIDE_BY_SIDE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a user saw of a failure."""

    rows: list[Row]
    """Of `kubectl get ddpjob --watch`."""
    description: str
    """Of `kubectl describe ddpjob`."""
    seconds: float
    """From the fault to the reason in a row."""

    @property
    def reason(self) -> str:
        """The reason in the last row."""
        return self.rows[-1].reason


def play(failure: SeededFailure, cluster, watch: JobWatch, transcripts: Path) -> Shown:
    """Cause the failure and watch it as a user does."""
    with fresh_namespace(cluster.kubectl) as namespace:
        job = JobOnCluster(cluster.kubectl, namespace)
        began = time.monotonic()
        failure.apply(job)
        first = 0
        if failure.fault:
            first = watch.wait_row(namespace, job.name, state="Running", seconds=300)
            failure.fault(cluster, job)
            began = time.monotonic()
        try:
            found = watch.wait_row(
                namespace, job.name, reason=failure.reason, behind=first, seconds=failure.within_seconds
            )
            seconds = time.monotonic() - began
            at_first = describe(job)
            watch.wait_row(namespace, job.name, state=failure.leads_to, behind=found, seconds=300)
            description = with_event(job, failure.reason)
            if failure.logged:
                wait_for_log(job, failure)
            shown = Shown(rows=watch.rows(namespace, job.name), description=description, seconds=seconds)
        except testbed.DeadlineError as error:
            rows = [row.line for row in watch.rows(namespace, job.name)]
            raise AssertionError("\n".join([str(error), *rows, describe(job), job.report()])) from error
        write(transcripts / f"{failure.name}.txt", watch.header, shown, at_first)
        return shown


def describe(job: JobOnCluster) -> str:
    return job.kubectl("describe", "ddpjob", job.name, "-n", job.namespace)


def with_event(job: JobOnCluster, reason: str) -> str:
    """The description, once it has an Event of this reason."""
    return testbed.wait_for(
        f"kubectl describe to show an Event {reason} of job {job.name}",
        lambda: text if f" {reason} " in (text := describe(job)).partition("\nEvents:")[2] else None,
        seconds=300,
        every_seconds=1,
    )


def wait_for_log(job: JobOnCluster, failure: SeededFailure) -> None:
    testbed.wait_for(
        f"{failure.logged} in the log of the rank that failed",
        lambda: re.search(failure.logged, job.log(1, failure.rank or 0)),
        seconds=300,
        every_seconds=1,
    )


def write(file: Path, header: str, shown: Shown, at_first: str) -> None:
    parts = [
        f"The reason was in the column {shown.seconds:.1f} s after the fault.",
        "\n".join(["$ kubectl get ddpjob --all-namespaces --watch", header, *(row.line for row in shown.rows)]),
        f"$ kubectl describe ddpjob {file.stem}    # at the end\n{shown.description}",
        f"$ kubectl describe ddpjob {file.stem}    # when the reason first showed\n{at_first}",
    ]
    file.write_text("\n\n".join(parts))


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("E2E_TRANSCRIPTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("transcripts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def outcomes(cluster, installed_operator: None, transcripts: Path) -> Iterator[Mapping[str, Future[Shown]]]:  # noqa: ARG001
    """What kubectl showed of each failure that can be caused here, by its name."""
    mine = isinstance(cluster, testbed.Cluster)
    possible = [failure for failure in FAILURES if mine or not failure.needs_machine]
    with JobWatch(cluster.kubeconfig, transcripts / "get-watch.txt") as watch:
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            futures = {f.name: pool.submit(play, f, cluster, watch, transcripts) for f in possible}
        if mine:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                futures[NODE_LOSS.name] = pool.submit(play, NODE_LOSS, cluster, watch, transcripts)
            for node in cluster.nodes:
                if not node.kubelet.alive:
                    node.start_kubelet()
                cluster.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=300s")
        yield futures


@pytest.mark.parametrize("failure", [*FAILURES, NODE_LOSS], ids=lambda failure: failure.name)
def test_get_and_describe_name_the_cause(failure: SeededFailure, outcomes: Mapping[str, Future[Shown]]) -> None:
    if failure.name not in outcomes:
        pytest.skip("E2E_KUBECONFIG names a cluster whose nodes cannot be broken from here")
    shown = outcomes[failure.name].result()

    print(shown.description)
    said = " ".join(shown.description.partition("\nStatus:\n")[2].split())
    missing = [pattern for pattern in failure.patterns if not re.search(pattern, said)]
    assert not missing, f"the status says nothing of {missing}"
    assert shown.reason == failure.reason or failure.leads_to == "Running"
    if failure.rank is not None:
        pod = f"{failure.name}-1-{failure.rank}"
        record = rf"Failure: Attempt: 1 .*Node: \S+ Pod: {pod} Rank: {failure.rank} Reason: {failure.reason} "
        assert re.search(record, said), f"no record of rank {failure.rank} with pod, node and {failure.reason}"
