"""The measures. Each works in a namespace of its own and gives rows of one table."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median, quantiles
from typing import Any

from bench.operators.api import Api
from bench.operators.jobs import JobKind, Jobs, bare_pod, bare_policy, bare_service, job_names
from bench.operators.observer import Observer
from bench.operators.process import Cost, DDPJobOperator, OperatorUnderTest, cpu_seconds_of

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
#: Verbs that change nothing.
READS = frozenset({"get", "list", "watch", "log"})
#: Created, but nothing is stored: the operator asks which rights it has.
REVIEWS = "create selfsubjectaccessreviews"
#: Pause between two jobs that are made one at a time.
SETTLE_SECONDS = 0.2
#: A wait within which everything that an operator still writes has been written.
QUIET_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    measure: str
    value: float
    unit: str
    aim: str = ""
    remark: str = ""
    samples: tuple[float, ...] = ()


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
    failovers: int = 5
    """Leaders that end, and as many that are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measures work with."""

    api: Api
    kind: JobKind
    operator: OperatorUnderTest
    sizes: Sizes
    neighbours: Mapping[str, int] = field(default_factory=dict)
    """Process ids of the control plane's programs, whose CPU time is reported, too."""
    rows: list[Row] = field(default_factory=list)

    def row(self, measure: str, value: float, unit: str, aim: str = "", remark: str = "") -> None:
        """Add a line."""
        self._add(Row(measure=measure, value=value, unit=unit, aim=aim, remark=remark))

    def row_of(self, measure: str, seconds: Sequence[float], aim: str = "", remark: str = "") -> None:
        """Add a line for the median, in milliseconds, with the 99th percentile or the maximum as the remark."""
        ms = [1000 * value for value in seconds]
        high = quantiles(ms, n=100)[98] if len(ms) >= 100 else max(ms)
        word = "p99" if len(ms) >= 100 else "max"
        remark = f"{word} {high:.0f} ms of {len(ms)}{'; ' if remark else ''}{remark}"
        self._add(Row(measure=measure, value=median(ms), unit="ms", aim=aim, remark=remark, samples=tuple(ms)))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(f"{row.measure}: {row.value:.2f} {row.unit}; {row.remark}", file=sys.stderr, flush=True)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of every process that is known, this one included."""
        pids = {**self.neighbours, "operator": self.operator.pid, "this benchmark": os.getpid()}
        return {name: cpu_seconds_of(pid) for name, pid in pids.items() if pid is not None}

    def cpu_spent(self, before: Mapping[str, float]) -> str:
        """Who has used how much CPU time since then."""
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in self.cpu_seconds().items()}
        return "CPU-seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())

    def jobs(self, namespace: str) -> Jobs:
        """The jobs of a namespace that is new."""
        return Jobs(api=self.api, kind=self.kind, namespace=f"{namespace}-{int(time.time())}")

    def observer(self, jobs: Jobs) -> Observer:
        """Watches of that namespace."""
        return Observer(self.api, jobs_path=jobs.path, pods_path=jobs.pods_path, pod_selector=self.kind.pod_selector)


async def floor(bench: Bench) -> None:
    """What the API server gives a client that does nothing else."""
    jobs = bench.jobs("floor")
    await jobs.make_namespace()
    api, pods = bench.api, jobs.pods_path
    services = f"/api/v1/namespaces/{jobs.namespace}/services"
    gangs = []
    for index in range(bench.sizes.singles):
        began = time.monotonic()
        await asyncio.gather(
            api.send("POST", services, bare_service(f"s{index}")),
            *(api.send("POST", pods, bare_pod(f"p{index}-{rank}")) for rank in range(bench.sizes.storm_pods)),
        )
        gangs.append(time.monotonic() - began)
    bench.row_of(FLOOR_GANG, gangs)
    began = time.monotonic()
    await asyncio.gather(*(api.send("POST", pods, bare_pod(f"q{index}")) for index in range(bench.sizes.floor_pods)))
    bench.row(FLOOR_PODS, bench.sizes.floor_pods / (time.monotonic() - began), "pods/s")


async def floor_of_the_storm(bench: Bench) -> None:
    """A storm's necessary objects and nothing else: for each job a Service, a NetworkPolicy and then its pods, which run.

    Unlike the other figures of the floor, these include what scheduler, nodes and controllers do meanwhile on the same machine, and
    that a pod exists once a watch has shown it.
    """
    jobs, num = bench.jobs("floor-storm"), bench.sizes.storm_pods
    await jobs.make_namespace()
    api, namespace = bench.api, f"namespaces/{jobs.namespace}"
    names, total = job_names(0, bench.sizes.storm_jobs), bench.sizes.storm_jobs * num

    async def create(name: str) -> None:
        await asyncio.gather(
            api.send("POST", f"/api/v1/{namespace}/services", bare_service(name)),
            api.send("POST", f"/apis/networking.k8s.io/v1/{namespace}/networkpolicies", bare_policy(name)),
        )
        await asyncio.gather(*(api.send("POST", jobs.pods_path, bare_pod(f"{name}-{rank}")) for rank in range(num)))

    async with Observer(api, jobs_path=jobs.path, pods_path=jobs.pods_path, pod_selector="bench=floor") as seen:
        cpu_before, began = bench.cpu_seconds(), time.monotonic()
        creating = asyncio.create_task(_all(map(create, names)))
        at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
        await creating
        bench.row(FLOOR_STORM, total / (at - began), "pods/s", remark=bench.cpu_spent(cpu_before))
        at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
        bench.row(FLOOR_STORM_RUN, at - began, "s", remark=bench.cpu_spent(cpu_before))


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*work)


def against_the_floor(rows: Sequence[Row]) -> list[Row]:
    """What the operator reaches of what this machine gave a bare client in the same run: machines differ, and vary.

    The aims are 25 ms, 200 pods/s and 3 CPU-seconds on a machine whose floor is 12 ms and 700 pods/s.
    """
    values = {row.measure: row.value for row in rows}
    ours = [next((row.value for row in rows if part in row.measure), None) for part in (SINGLE, STORM, STORM_CPU)]
    gang_ms, storm_per_second, cpu_seconds = ours
    if gang_ms is None or storm_per_second is None or cpu_seconds is None or FLOOR_GANG not in values:
        return []
    floor_ms, floor_per_second = values[FLOOR_GANG], values[FLOOR_PODS]
    bare_storm = values.get(FLOOR_STORM)
    share = storm_per_second / bare_storm if bare_storm else None
    return [
        *([] if share is None else [Row(measure="a storm's pods/s, in a bare client's storm's", value=share, unit="")]),
        Row(measure="a job's 4 pods, in the floor's time", value=gang_ms / floor_ms, unit="", aim="<= 2.1"),
        Row(
            measure="a storm's pods/s, in the floor's",
            value=storm_per_second / floor_per_second,
            unit="",
            aim=">= 0.29",
        ),
        Row(measure="a storm's CPU, in the floor's pods", value=cpu_seconds * floor_per_second, unit="", aim="<= 2100"),
    ]


async def lives(bench: Bench) -> None:
    """Jobs one at a time, then a storm of them, failures among them, and their good end."""
    jobs, num = bench.jobs("lives"), bench.sizes.storm_pods
    await jobs.make_namespace()
    async with bench.observer(jobs) as seen:
        singles = await _one_at_a_time(bench, jobs, seen)
        await seen.until("the single jobs to run", lambda: seen.num_running == len(singles) * num, JOB_SECONDS)
        await _failures(bench, jobs, seen, singles[: bench.sizes.failures])
        await jobs.delete_all(singles)
        await seen.until("the single jobs' pods to go", lambda: not seen.pods, STORM_SECONDS)
        storm = job_names(1000, bench.sizes.storm_jobs)
        before = bench.operator.cost()
        await _storm(bench, jobs, seen, storm, num)
        await seen.until("the storm's pods to run", lambda: seen.num_running == len(storm) * num, STORM_SECONDS)
        await asyncio.sleep(QUIET_SECONDS)
        bench.row("memory at the storm's end", bench.operator.cost().memory_bytes / MIB, "MiB", "< 130", "RSS")
        await _idle(bench, "running")
        await _finish(bench, jobs, seen, storm)
        await asyncio.sleep(QUIET_SECONDS)
        _whole_life(bench, before, len(storm))
        await _idle(bench, "finished")


async def _one_at_a_time(bench: Bench, jobs: Jobs, seen: Observer) -> list[str]:
    names, num, seconds = job_names(0, bench.sizes.singles), bench.sizes.storm_pods, []
    for name in names:
        began = time.monotonic()
        posting = asyncio.create_task(jobs.create(name, num))
        at = await seen.until(f"{num} pods of {name}", partial(_all_live, seen, name, num), JOB_SECONDS)
        await posting
        seconds.append(at - began)
        await _settle(seen, name, num)
    bench.row_of(f"{SINGLE} {num} pods exist", seconds, "<= 25 ms")
    return names


async def _failures(bench: Bench, jobs: Jobs, seen: Observer, names: Sequence[str]) -> None:
    """One pod of each job fails; time until all ranks live again."""
    num, seconds, renewed = bench.sizes.storm_pods, [], []
    for name in names:
        old = {seen.pods[pod].uid for pod in seen.living[name]}
        victim = sorted(seen.living[name])[1 % num]

        began = time.monotonic()
        posting = asyncio.create_task(jobs.end_pod(victim, 1))
        whole = partial(_whole_again, seen, name, num, old)
        at = await seen.until(f"{name} to be whole again", whole, JOB_SECONDS)
        await posting
        seconds.append(at - began)
        renewed.append(_num_new(seen, name, old))
        await _settle(seen, name, num)
    bench.row_of(
        "a pod fails, the gang is whole again", seconds, "< 500 ms", f"{median(renewed):.0f} of {num} pods new"
    )


async def _storm(bench: Bench, jobs: Jobs, seen: Observer, names: Sequence[str], num: int) -> None:
    before, total = bench.operator.cost(), len(names) * num
    cpu_before = bench.cpu_seconds()
    began = time.monotonic()
    posting = asyncio.create_task(jobs.create_all(names, num))
    at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
    await posting
    what = f"{len(names)} jobs x {num} pods at once"
    bench.row(f"{what}: all pods exist", at - began, "s", remark=bench.cpu_spent(cpu_before))
    bench.row(f"{len(names)} jobs x {num} {STORM}", total / (at - began), "pods/s", ">= 200")
    at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
    await asyncio.sleep(QUIET_SECONDS)
    spent = _difference(before, bench.operator.cost())
    bench.row(f"{what}: all pods run", at - began, "s", remark=bench.cpu_spent(cpu_before))
    bench.row(f"{what}: {STORM_CPU}", spent.cpu_seconds, "s", "<= 3")
    bench.row(f"{what}: operator CPU per pod", 1000 * spent.cpu_seconds / total, "ms")
    if spent.cpu_seconds:
        remark = "pods started a second that would fill one core with it"
        bench.row("limit of one operator process", total / spent.cpu_seconds, "pods/s", remark=remark)


async def _finish(bench: Bench, jobs: Jobs, seen: Observer, names: Sequence[str]) -> None:
    began = time.monotonic()
    ending = asyncio.create_task(jobs.end_pods(list(chain(*(seen.living[name] for name in names))), 0))
    finished = seen.outcomes["Succeeded"] + len(names)
    await ending
    ended_at = time.monotonic()
    at = await seen.until("the jobs to finish", lambda: seen.outcomes["Succeeded"] == finished, STORM_SECONDS)
    remark = f"{at - ended_at:.1f} s after the end of the last pod was requested"
    bench.row(f"{len(names)} jobs' pods succeed: all jobs finished", at - began, "s", remark=remark)


async def _idle(bench: Bench, state: str) -> None:
    before, began = bench.operator.cost(), time.monotonic()
    await asyncio.sleep(bench.sizes.idle_seconds)
    minutes = (time.monotonic() - began) / 60
    spent = _difference(before, bench.operator.cost())
    reads = sum(count for what, count in spent.requests.items() if what.startswith("log "))
    others = spent.requests.total() - reads
    remark = _listed(spent.requests, minutes)
    bench.row(f"requests while all jobs are {state}", others / minutes, "per minute", "< 15", remark)
    bench.row(f"progress reads while all jobs are {state}", reads / minutes, "per minute")


def _whole_life(bench: Bench, before: Cost, num_jobs: int) -> None:
    spent = _difference(before, bench.operator.cost()).requests
    of_jobs = sum(n for what, n in spent.items() if not what.startswith("log ") and "leases" not in what)
    bench.row("requests per job, whole life", of_jobs / num_jobs, "", "", _listed(spent, num_jobs))
    bench.row("status writes per job, whole life", spent["patch ddpjobs"] / num_jobs, "", "<= 6")
    bench.row("Events per job, whole life", (spent["create events"] + spent["patch events"]) / num_jobs, "", "<= 2")


async def many(bench: Bench) -> None:
    """Very many jobs: created, run, observed by a restarted operator, finished."""
    jobs, names, num = bench.jobs("many"), job_names(0, bench.sizes.many_jobs), bench.sizes.many_pods
    total = len(names) * num
    what = f"{len(names)} jobs x {num} pods"
    await jobs.make_namespace()
    async with bench.observer(jobs) as seen:
        before, cpu_before, began = bench.operator.cost(), bench.cpu_seconds(), time.monotonic()
        posting = asyncio.create_task(jobs.create_all(names, num))
        at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
        await posting
        bench.row(f"{what}: pods", total / (at - began), "pods/s", "", f"all exist after {at - began:.1f} s")
        at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
        bench.row(f"{what}: all run", at - began, "s", remark=bench.cpu_spent(cpu_before))
        await asyncio.sleep(QUIET_SECONDS)
        cost = bench.operator.cost()
        remark = f"peak {cost.peak_memory_bytes / MIB:.0f} MiB"
        bench.row(f"{what}: memory", cost.memory_bytes / MIB, "MiB", "< 250", remark)
        bench.row(f"{what}: operator CPU per pod", 1000 * _difference(before, cost).cpu_seconds / total, "ms")
        num_errors = cost.num_errors
        if isinstance(bench.operator, DDPJobOperator):
            await _restart(bench, bench.operator, seen, what)
        before = bench.operator.cost()
        await _finish(bench, jobs, seen, names)
        await asyncio.sleep(QUIET_SECONDS)
        cost = bench.operator.cost()
        bench.row(
            f"{what}: operator CPU to finish, per pod", 1000 * _difference(before, cost).cpu_seconds / total, "ms"
        )
        complaints = bench.operator.num_complaints() if isinstance(bench.operator, DDPJobOperator) else 0
        remark = f"{complaints} warnings in the log, {seen.outcomes['Failed']} jobs failed"
        bench.row(f"{what}: failed passes", num_errors + cost.num_errors, "", "0", remark)


async def failover(bench: Bench) -> None:
    """A job is created at the moment at which the leader gets SIGTERM or SIGKILL; its pods are the standby's work."""
    leader = bench.operator
    if not isinstance(leader, DDPJobOperator):
        return
    jobs, num = bench.jobs("failover"), bench.sizes.storm_pods
    await jobs.make_namespace()
    async with contextlib.AsyncExitStack() as processes, bench.observer(jobs) as seen:
        for how, first, aim in ((signal.SIGTERM, 0, "< 1000"), (signal.SIGKILL, 1000, "within the lease")):
            seconds = []
            for name in job_names(first, bench.sizes.failovers):
                standby = processes.enter_context(leader.another())
                began = time.monotonic()
                leader.send(how)
                await jobs.create(name, num)
                at = await seen.until(f"{num} pods of {name}", partial(_all_live, seen, name, num), JOB_SECONDS)
                seconds.append(at - began)
                leader.stop()
                leader = standby
            bench.row_of(f"the leader gets {how.name}, the standby makes a new job's pods", seconds, aim)


async def _restart(bench: Bench, operator: DDPJobOperator, seen: Observer, what: str) -> None:
    operator.stop()
    changes = seen.num_job_changes
    ready_seconds = operator.start()
    await asyncio.sleep(QUIET_SECONDS)
    cost = operator.cost()
    changes_something = {
        what: n for what, n in cost.requests.items() if what.split()[0] not in READS and what != REVIEWS
    }
    writes = sum(n for what, n in changes_something.items() if "leases" not in what)
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


def _difference(before: Cost, after: Cost) -> Cost:
    return Cost(
        cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        memory_bytes=after.memory_bytes,
        peak_memory_bytes=after.peak_memory_bytes,
        requests=after.requests - before.requests,
        num_errors=after.num_errors - before.num_errors,
    )


def _listed(requests: Counter[str], per: float) -> str:
    return ", ".join(f"{count / per:.2f} {what}" for what, count in requests.most_common())
