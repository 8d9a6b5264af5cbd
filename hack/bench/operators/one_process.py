"""What one operator process needs for many jobs, without a cluster.

The answers of an API server go through the operator's own decoder, caches and decisions; `running-job.json` and
`running-pod.json` are what one with KWOK nodes sent. The memory is that of the process, less what it had before.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from bench import driver
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.transport.decoding import decoded

JOB, POD = (
    Template((Path(__file__).parent / name).read_text().strip()) for name in ("running-job.json", "running-pod.json")
)
#: Objects of one page of a list, as the operator asks for them.
PAGE = 500
EVENTS = 10_000


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def ignore(*_: object, **__: object) -> None:
    """What the operator does on a change is not measured here."""


def text_of(template: Template, job: int, rank: int, nodes: int, version: int) -> str:
    """One object; the jobs are in a hundred namespaces."""
    return template.safe_substitute(
        namespace=f"team-{job % 100}", job=f"job-{job}", rank=rank, nodes=nodes, version=version
    )


def pages(template: Template, num_jobs: int, num_ranks: int, nodes: int) -> Iterator[bytes]:
    """Lists of `num_ranks` objects for each job, in pages."""
    numbers = range(num_jobs * num_ranks)
    for first in range(0, len(numbers), PAGE):
        page = [text_of(template, *divmod(number, num_ranks), nodes, number + 1) for number in numbers[first:][:PAGE]]
        yield f'{{"items":[{",".join(page)}]}}'.encode()


def store_all(cache: Cache[Any], lists: Iterator[bytes]) -> tuple[float, float]:
    """Decode and store; gives the CPU time of that and the MiB that were decoded."""
    spent, num_bytes = 0.0, 0
    for page in lists:
        num_bytes += len(page)
        began = time.process_time()
        for body in decoded(cache.resource, page)["items"]:
            cache.put(body)
        spent += time.process_time() - began
    return spent, num_bytes / 2**20


def measure(num_jobs: int, nodes: int) -> Iterator[dict[str, Any]]:
    """All figures, as rows of a table."""
    store = Store(changed=ignore, vanished=ignore)
    before = resident_mib()
    for what, cache, template, ranks in (("jobs", store.jobs, JOB, 1), ("pods", store.pods, POD, nodes)):
        seconds, mib = store_all(cache, pages(template, num_jobs, ranks, nodes))
        yield {"what": f"{len(cache)} {what}, listed: CPU-seconds", "value": seconds}
        yield {"what": f"{len(cache)} {what}, listed: MiB of JSON", "value": mib}
    yield {"what": "memory of the caches, MiB", "value": resident_mib() - before}

    began = time.process_time()
    for known in store.jobs.records():
        plan(Observed(job=known.job, pods=tuple(store.pods_of(known.job)), trainer_image="trainer:1"), time.time())
    yield {"what": "one decision for each job, CPU-seconds", "value": time.process_time() - began}

    lines = [
        f'{{"type":"MODIFIED","object":{text_of(POD, at % num_jobs, 0, nodes, 10**9 + at)}}}'.encode()
        for at in range(EVENTS)
    ]
    began = time.process_time()
    for line in lines:
        store.pods.put(decoded(store.pods.resource, line)["object"])
    yield {"what": "an event of a pod without news, µs", "value": (time.process_time() - began) / EVENTS * 1e6}


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = driver.parser_of("bench.operators.one_process", __doc__, "one-process")
    parser.add_argument("--jobs", type=int, default=5000, help="number of running jobs (default: 5000)")
    parser.add_argument("--nodes", type=int, default=8, help="pods of each job (default: 8)")
    given = parser.parse_args()
    run = driver.Run(given, "One operator process", driver.of_operators())
    for row in measure(given.jobs, given.nodes):
        run.add(row)
    return run.end()


if __name__ == "__main__":
    sys.exit(main())
