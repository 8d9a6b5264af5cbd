"""What one operator process needs for many jobs, without a cluster: `python -m bench.operators.one_process --jobs 5000`.

Job and pod bodies as an API server sends them go through the operator's own decoder, caches and decisions. The memory is that
of the process after all of them are known, less what it had before.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.resources import DDPJOBS, PODS, Resource

Body = Mapping[str, Any]
#: A running job and a pod of it, as an API server with KWOK nodes sent them.
TEMPLATES = Path(__file__).parent / "templates.json"
#: Objects of one page of a list, as the operator asks for them.
PAGE = 500


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    return time.process_time()


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def ignore(*_: object, **__: object) -> None:
    """What the operator does on a change is not measured here."""


def job_bodies(template: Body, num_jobs: int, num_nodes: int) -> Iterator[Body]:
    """Running jobs in a hundred namespaces."""
    now = rfc3339(time.time())
    for number in range(num_jobs):
        body = copy.deepcopy(dict(template))
        body["metadata"] |= {"namespace": f"team-{number % 100}", "name": f"job-{number}", "uid": f"job-{number}"}
        body["metadata"]["resourceVersion"] = str(number + 1)
        body["spec"]["nodes"] = num_nodes
        body["status"] |= {"startTime": now, "attemptStartTime": now, "scheduledTime": now, "runningSince": now}
        yield body


def pod_bodies(template: Body, num_jobs: int, num_nodes: int) -> Iterator[Body]:
    """The running pods of these jobs."""
    for number in range(num_jobs * num_nodes):
        job, rank = divmod(number, num_nodes)
        body = copy.deepcopy(dict(template))
        metadata = {"namespace": f"team-{job % 100}", "name": f"job-{job}-1-{rank}", "uid": f"pod-{number}"}
        body["metadata"] |= metadata | {"resourceVersion": str(number + 1)}
        labels = {names.LABEL_JOB: f"job-{job}", names.LABEL_JOB_UID: f"job-{job}", names.LABEL_RANK: str(rank)}
        body["metadata"]["labels"] |= labels | {names.LABEL_ATTEMPT: "1"}
        body["metadata"]["ownerReferences"][0] |= {"name": f"job-{job}", "uid": f"job-{job}"}
        body["spec"]["nodeName"] = f"node-{number % 10000}"
        # The field that the API server writes last: the decoder expects that order.
        body["metadata"]["managedFields"] = body["metadata"].pop("managedFields")
        yield body


def texts(bodies: Iterator[Body]) -> Iterator[bytes]:
    """The bodies as pages of lists."""
    page: list[Body] = []
    for body in bodies:
        page.append(body)
        if len(page) == PAGE:
            yield json.dumps({"items": page}, separators=(",", ":")).encode()
            page = []
    if page:
        yield json.dumps({"items": page}, separators=(",", ":")).encode()


def read(kind: Resource, pages: Iterator[bytes], put: Callable[[Body], object]) -> tuple[float, int]:
    """Decode and store what pages hold; gives the CPU time without that of making them, and their bytes."""
    spent, num_bytes = 0.0, 0
    for page in pages:
        num_bytes += len(page)
        began = cpu_seconds()
        for body in decoded(kind, page)["items"]:
            put(body)
        spent += cpu_seconds() - began
    return spent, num_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000, help="number of running jobs (default: 5000)")
    parser.add_argument("--nodes", type=int, default=8, help="pods of each job (default: 8)")
    given = parser.parse_args()
    templates = json.loads(TEMPLATES.read_text())
    num_pods = given.jobs * given.nodes
    store = Store(changed=ignore, vanished=ignore)
    before = resident_mib()
    seconds, num_bytes = read(DDPJOBS, texts(job_bodies(templates["job"], given.jobs, given.nodes)), store.jobs.put)
    print(f"list of {given.jobs} jobs: {seconds:.2f} CPU-seconds, {num_bytes / 2**20:.0f} MiB on the wire")
    seconds, num_bytes = read(PODS, texts(pod_bodies(templates["pod"], given.jobs, given.nodes)), store.pods.put)
    print(f"list of {num_pods} pods: {seconds:.2f} CPU-seconds, {num_bytes / 2**20:.0f} MiB on the wire")
    print(f"memory of the caches: {resident_mib() - before:.0f} MiB")

    known = list(store.jobs.records())
    began = cpu_seconds()
    for each in known:
        seen = Observed(job=each.job, pods=tuple(store.pods_of(each.job)), trainer_image="trainer:1")
        plan(seen, time.time())
    print(f"one decision for each job: {cpu_seconds() - began:.2f} CPU-seconds")

    sample = [
        json.dumps(
            {"type": "MODIFIED", "object": body | {"metadata": body["metadata"] | {"resourceVersion": str(10**9 + at)}}}
        )
        for at, body in enumerate(random.choices(list(pod_bodies(templates["pod"], 100, given.nodes)), k=10_000))  # noqa: S311
    ]
    began = cpu_seconds()
    for line in sample:
        store.pods.put(decoded(PODS, line.encode())["object"])
    print(f"a pod's event without news: {(cpu_seconds() - began) / len(sample) * 1e6:.0f} µs")


if __name__ == "__main__":
    main()
