"""The measures. Each works in a namespace of its own and gives rows of one table."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median, quantiles
from typing import Any

from bench import driver
from bench.operators.jobs import (
    at_once,
    bare_pod,
    bare_policy,
    bare_service,
    create,
    create_all,
    delete_all,
    job_names,
)
from bench.operators.observer import Observer
from bench.operators.process import Cost, TimedOperator, cpu_seconds_of
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import PODS, SERVICES, Resource
from support.operator_cluster import Namespace, create_namespace

POLICIES = Resource.of_version("networking.k8s.io/v1", "networkpolicies")
MIB = 2**20
#: Longest wait for one job, and for a storm.
JOB_SECONDS = 60.0
STORM_SECONDS = 1800.0
#: Names of the floor's measures, and parts of the names of the measures that are compared with them.
FLOOR_GANG = "floor: a bare client's Service and 4 pods"
FLOOR_PODS = "floor: a bare client's pods"
FLOOR_STORM = "floor: a bare client's storm: pods"
FLOOR_STORM_RUN = "floor: a bare client's storm: all pods run"
SINGLE = "a job created, its"
STORM = "pods at once: pods"
STORM_CPU = "operator CPU until all run"
#: What the operator sends that stores nothing: reads, and the question which rights it has.
READS = ("get ", "list ", "watch ", "log ", "create selfsubjectaccessreviews")
#: Pause between two jobs that are made one at a time.
SETTLE_SECONDS = 0.2
#: A wait within which everything that an operator still writes has been written.
QUIET_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    singles: int = 30
    """Jobs made one at a time."""
    storm_jobs: int = 200
    storm_pods: int = 4
    failures: int = 30
    idle_seconds: float = 60.0
    many_jobs: int = 1000
    many_pods: int = 8
    floor_pods: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measures work with."""

    client: Client
    operator: TimedOperator
    sizes: Sizes
    neighbours: Mapping[str, int] = field(default_factory=dict)
    """Process ids of the control plane's programs, whose CPU time is reported, too."""
    run: driver.Run

    def row(self, measure: str, value: float, unit: str, aim: str = "", remark: str = "") -> None:
        """Add a line."""
        self.run.row(measure=measure, value=float(value), unit=unit, aim=aim, remark=remark)

    def row_of(self, measure: str, seconds: Sequence[float], aim: str = "", remark: str = "") -> None:
        """Add a line for the median, in milliseconds, with the 99th percentile or the maximum as the remark."""
        ms = [1000 * value for value in seconds]
        high = quantiles(ms, n=100)[98] if len(ms) >= 100 else max(ms)
        word = "p99" if len(ms) >= 100 else "max"
        self.row(measure, median(ms), "ms", aim, f"{word} {high:.0f} ms of {len(ms)}{'; ' if remark else ''}{remark}")

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of every process that is known, this one included."""
        pids = {**self.neighbours, "operator": self.operator.pid, "this benchmark": os.getpid()}
        return {name: cpu_seconds_of(pid) for name, pid in pids.items()}

    def cpu_spent(self, before: Mapping[str, float]) -> str:
        """Who has used how much CPU time since then."""
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in self.cpu_seconds().items()}
        return "CPU-seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())

    async def namespace(self, name: str) -> Namespace:
        """A new namespace, in which pods can be created."""
        return await create_namespace(self.client, name)


async def floor(bench: Bench) -> None:
    """What the API server gives a client that does nothing else."""
    name = (await bench.namespace("floor")).name
    post = partial(bench.client.create, PODS, name)
    gangs = []
    for index in range(bench.sizes.singles):
        began = time.monotonic()
        await asyncio.gather(
            bench.client.create(SERVICES, name, bare_service(f"s{index}")),
            *(post(bare_pod(f"p{index}-{rank}")) for rank in range(bench.sizes.storm_pods)),
        )
        gangs.append(time.monotonic() - began)
    bench.row_of(FLOOR_GANG, gangs)
    began = time.monotonic()
    await at_once(post(bare_pod(f"q{index}")) for index in range(bench.sizes.floor_pods))
    bench.row(FLOOR_PODS, bench.sizes.floor_pods / (time.monotonic() - began), "pods/s")


async def floor_of_the_storm(bench: Bench) -> None:
    """A storm's necessary objects and nothing else: for each job a Service, a NetworkPolicy and then its pods, which run.

    Unlike the other figures of the floor, these include what scheduler, nodes and controllers do meanwhile on the same machine, and
    that a pod exists once a watch has shown it.
    """
    namespace, num = await bench.namespace("floor-storm"), bench.sizes.storm_pods
    names, total = job_names(0, bench.sizes.storm_jobs), bench.sizes.storm_jobs * num

    async def necessary(name: str) -> None:
        await bench.client.create(SERVICES, namespace.name, bare_service(name))
        await bench.client.create(POLICIES, namespace.name, bare_policy(name))
        for rank in range(num):
            await bench.client.create(PODS, namespace.name, bare_pod(f"{name}-{rank}"))

    async with Observer(namespace, pod_labels="bench=floor") as seen:
        cpu_before, began = bench.cpu_seconds(), time.monotonic()
        creating = asyncio.create_task(at_once(map(necessary, names)))
        at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
        await creating
        bench.row(FLOOR_STORM, total / (at - began), "pods/s", remark=bench.cpu_spent(cpu_before))
        at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
        bench.row(FLOOR_STORM_RUN, at - began, "s", remark=bench.cpu_spent(cpu_before))


def against_the_floor(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the operator reaches of what this machine gave a bare client in the same run: machines differ, and vary.

    The aims are 25 ms and 200 pods/s on a machine whose floor is 12 ms and 700 pods/s.
    """

    def value(part: str) -> float | None:
        return next((row["value"] for row in rows if part in row["measure"]), None)

    compared = (
        ("a storm's pods/s, in a bare client's storm's", STORM, FLOOR_STORM, ""),
        ("a job's 4 pods, in the floor's time", SINGLE, FLOOR_GANG, "<= 2.1"),
        ("a storm's pods/s, in the floor's", STORM, FLOOR_PODS, ">= 0.29"),
    )
    return [
        {"measure": name, "value": ours / bare, "aim": aim}
        for name, part, floor_part, aim in compared
        if (ours := value(part)) is not None and (bare := value(floor_part)) is not None
    ]


async def lives(bench: Bench) -> None:
    """Jobs one at a time, then a storm of them, failures among them, and their good end."""
    jobs, num = await bench.namespace("lives"), bench.sizes.storm_pods
    async with Observer(jobs) as seen:
        singles = await _one_at_a_time(bench, jobs, seen)
        await seen.until("the single jobs to run", lambda: seen.num_running == len(singles) * num, JOB_SECONDS)
        await _failures(bench, jobs, seen, singles[: bench.sizes.failures])
        await delete_all(jobs)
        await seen.until("the single jobs' pods to go", lambda: not seen.pods, STORM_SECONDS)
        storm = job_names(1000, bench.sizes.storm_jobs)
        before = bench.operator.cost()
        await _storm(bench, jobs, seen, storm, num)
        await asyncio.sleep(QUIET_SECONDS)
        bench.row("memory at the storm's end", bench.operator.cost().memory_bytes / MIB, "MiB", "< 130", "RSS")
        await _idle(bench, "running")
        await _finish(bench, jobs, seen, storm)
        await asyncio.sleep(QUIET_SECONDS)
        _whole_life(bench, before, len(storm))
        await _idle(bench, "finished")


async def _one_at_a_time(bench: Bench, jobs: Namespace, seen: Observer) -> list[str]:
    names, num, seconds = job_names(0, bench.sizes.singles), bench.sizes.storm_pods, []
    for name in names:
        began = time.monotonic()
        posting = asyncio.create_task(create(jobs, name, num))
        at = await seen.until(f"{num} pods of {name}", partial(_all_live, seen, name, num), JOB_SECONDS)
        await posting
        seconds.append(at - began)
        await _settle(seen, name, num)
    bench.row_of(f"{SINGLE} {num} pods exist", seconds, "<= 25 ms")
    return names


async def _failures(bench: Bench, jobs: Namespace, seen: Observer, names: Sequence[str]) -> None:
    """One pod of each job fails; time until all ranks live again."""
    num, seconds, renewed = bench.sizes.storm_pods, [], []
    for name in names:
        old = {seen.pods[pod].uid for pod in seen.living[name]}
        victim = sorted(seen.living[name])[1 % num]

        began = time.monotonic()
        posting = asyncio.create_task(jobs.ends(victim, 1))
        whole = partial(_whole_again, seen, name, num, old)
        at = await seen.until(f"{name} to be whole again", whole, JOB_SECONDS)
        await posting
        seconds.append(at - began)
        renewed.append(_num_new(seen, name, old))
        await _settle(seen, name, num)
    bench.row_of(
        "a pod fails, the gang is whole again", seconds, "< 500 ms", f"{median(renewed):.0f} of {num} pods new"
    )


async def _storm(bench: Bench, jobs: Namespace, seen: Observer, names: Sequence[str], num: int) -> None:
    before, cpu_before, total = bench.operator.cost(), bench.cpu_seconds(), len(names) * num
    began = time.monotonic()
    posting = asyncio.create_task(create_all(jobs, names, num))
    at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
    await posting
    what = f"{len(names)} jobs x {num} pods at once"
    bench.row(f"{what}: all pods exist", at - began, "s", remark=bench.cpu_spent(cpu_before))
    bench.row(f"{len(names)} jobs x {num} {STORM}", total / (at - began), "pods/s", ">= 200")
    at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
    await asyncio.sleep(QUIET_SECONDS)
    cpu_seconds = bench.operator.cost().cpu_seconds - before.cpu_seconds
    bench.row(f"{what}: all pods run", at - began, "s", remark=bench.cpu_spent(cpu_before))
    bench.row(f"{what}: {STORM_CPU}", cpu_seconds, "s", "<= 3")
    remark = (
        f"one core of the operator is full at {total / cpu_seconds:.0f} pods started a second" if cpu_seconds else ""
    )
    bench.row(f"{what}: operator CPU per pod", 1000 * cpu_seconds / total, "ms", remark=remark)


async def _finish(bench: Bench, jobs: Namespace, seen: Observer, names: Sequence[str]) -> None:
    began = time.monotonic()
    finished = seen.num_in["Succeeded"] + len(names)
    await at_once(jobs.ends(pod, 0) for pod in list(chain(*(seen.living[name] for name in names))))
    ended_at = time.monotonic()
    at = await seen.until("the jobs to finish", lambda: seen.num_in["Succeeded"] == finished, STORM_SECONDS)
    remark = f"{at - ended_at:.1f} s after the end of the last pod was requested"
    bench.row(f"{len(names)} jobs' pods succeed: all jobs finished", at - began, "s", remark=remark)


async def _idle(bench: Bench, state: str) -> None:
    before, began = bench.operator.cost(), time.monotonic()
    await asyncio.sleep(bench.sizes.idle_seconds)
    minutes = (time.monotonic() - began) / 60
    requests = _sent(before, bench.operator.cost())
    reads = sum(count for what, count in requests.items() if what.startswith("log "))
    others = requests.total() - reads
    bench.row(
        f"requests while all jobs are {state}", others / minutes, "per minute", "< 15", _listed(requests, minutes)
    )
    bench.row(f"progress reads while all jobs are {state}", reads / minutes, "per minute")


def _whole_life(bench: Bench, before: Cost, num_jobs: int) -> None:
    sent = _sent(before, bench.operator.cost())
    of_jobs = sum(n for what, n in sent.items() if not what.startswith("log ") and "leases" not in what)
    bench.row("requests per job, whole life", of_jobs / num_jobs, "", "", _listed(sent, num_jobs))
    bench.row("status writes per job, whole life", sent["patch ddpjobs"] / num_jobs, "", "<= 6")
    bench.row("Events per job, whole life", (sent["create events"] + sent["patch events"]) / num_jobs, "", "<= 2")


async def many(bench: Bench) -> None:
    """Very many jobs: created, run, observed by a restarted operator, finished."""
    jobs, names, num = await bench.namespace("many"), job_names(0, bench.sizes.many_jobs), bench.sizes.many_pods
    total = len(names) * num
    what = f"{len(names)} jobs x {num} pods"
    async with Observer(jobs) as seen:
        await _storm(bench, jobs, seen, names, num)
        cost = bench.operator.cost()
        remark = f"peak {cost.peak_memory_bytes / MIB:.0f} MiB"
        bench.row(f"{what}: memory", cost.memory_bytes / MIB, "MiB", "< 250", remark)
        await _restart(bench, seen, what)
        before = bench.operator.cost()
        await _finish(bench, jobs, seen, names)
        await asyncio.sleep(QUIET_SECONDS)
        last = bench.operator.cost()
        cpu_seconds = last.cpu_seconds - before.cpu_seconds
        bench.row(f"{what}: operator CPU to finish, per pod", 1000 * cpu_seconds / total, "ms")
        remark = f"{bench.operator.num_complaints()} warnings in the log, {seen.num_in['Failed']} jobs failed"
        bench.row(f"{what}: failed passes", cost.num_errors + last.num_errors, "", "0", remark)


async def _restart(bench: Bench, seen: Observer, what: str) -> None:
    bench.operator.stop()
    changes = seen.num_job_changes
    ready_seconds = bench.operator.seconds_to_start()
    await asyncio.sleep(QUIET_SECONDS)
    cost = bench.operator.cost()
    writes = sum(n for sent, n in cost.requests.items() if not sent.startswith(READS) and "leases" not in sent)
    remark = f"{cost.cpu_seconds:.1f} CPU-seconds, {cost.memory_bytes / MIB:.0f} MiB"
    bench.row(f"{what}: restarted operator, caches in step", ready_seconds, "s", "", remark)
    remark = f"{seen.num_job_changes - changes} changes of jobs seen; {_listed(cost.requests, 1)}"
    bench.row(f"{what}: writes of a restarted operator", writes, "", "0", f"its Lease apart; {remark}")


async def _settle(seen: Observer, name: str, num: int) -> None:
    """Wait until the job runs and is written about: the next one must not meet its scheduling."""
    await seen.until(f"{name} to run", partial(_all_run, seen, name, num), JOB_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)


def _all_live(seen: Observer, name: str, num: int) -> bool:
    return len(seen.living[name]) == num


def _all_run(seen: Observer, name: str, num: int) -> bool:
    return sum(seen.pods[pod].running for pod in seen.living[name]) == num


def _num_new(seen: Observer, name: str, old: set[str]) -> int:
    return sum(seen.pods[pod].uid not in old for pod in seen.living[name])


def _whole_again(seen: Observer, name: str, num: int, old: set[str]) -> bool:
    return _all_live(seen, name, num) and _num_new(seen, name, old) > 0


def _sent(before: Cost, after: Cost) -> Counter[str]:
    return after.requests - before.requests


def _listed(requests: Counter[str], per: float) -> str:
    return ", ".join(f"{count / per:.2f} {what}" for what, count in requests.most_common())
