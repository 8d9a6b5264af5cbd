"""The measures. Each works in a namespace of its own and gives rows of one table."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median, quantiles
from typing import Any

from bench import driver
from bench.operators import jobs
from bench.operators.jobs import at_once, job_names
from bench.operators.observer import Observer
from bench.operators.process import TimedOperator, cpu_seconds_of
from ddpjob_operator.transport.client import Client
from support.operator_cluster import Namespace, create_namespace

MIB = 2**20
#: Longest wait for one job, and for a storm.
JOB_SECONDS = 60.0
STORM_SECONDS = 1800.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measures work with."""

    client: Client
    operator: TimedOperator
    sizes: Sizes
    neighbours: Mapping[str, int]
    """Process ids of the control plane's programs, whose CPU time is reported, too."""
    run: driver.Run

    def row(self, measure: str, value: float, unit: str, aim: str = "", remark: str = "") -> None:
        """Add a line."""
        self.run.row(measure=measure, value=float(value), unit=unit, aim=aim, remark=remark)

    def row_of(self, measure: str, seconds: Sequence[float], aim: str, remark: str = "") -> None:
        """Add a line for the median, in milliseconds, with the 99th percentile or the maximum as the remark."""
        ms = [1000 * value for value in seconds]
        high, word = (quantiles(ms, n=100)[98], "p99") if len(ms) >= 100 else (max(ms), "max")
        self.row(measure, median(ms), "ms", aim, f"{word} {high:.0f} ms of {len(ms)}{'; ' * bool(remark)}{remark}")

    def cpu_seconds(self) -> Counter[str]:
        """CPU time so far of every process that is known, this one included."""
        pids = {**self.neighbours, "operator": self.operator.pid, "this benchmark": os.getpid()}
        return Counter({name: cpu_seconds_of(pid) for name, pid in pids.items()})

    def cpu_spent(self, before: Mapping[str, float]) -> str:
        """Who has used how much CPU time since then."""
        spent = [f"{name} {seconds - before[name]:.1f}" for name, seconds in self.cpu_seconds().items()]
        return f"CPU-seconds: {', '.join(spent)}"


async def floor_of_the_storm(bench: Bench) -> None:
    """A storm's necessary objects and nothing else: for each job a Service, a NetworkPolicy and then its pods, which run."""
    namespace, num = await create_namespace(bench.client, "floor-storm"), bench.sizes.storm_pods
    names = job_names(0, bench.sizes.storm_jobs)
    async with Observer(namespace, pod_labels="bench=floor") as seen:
        creating = at_once(jobs.create_bare(namespace, name, num) for name in names)
        await _storm(bench, seen, creating, "a bare client's storm", len(names) * num)


async def lives(bench: Bench) -> None:
    """Jobs one at a time, then a storm of them, failures among them, and their good end."""
    namespace, num = await create_namespace(bench.client, "lives"), bench.sizes.storm_pods
    async with Observer(namespace) as seen:
        singles = await _one_at_a_time(bench, namespace, seen)
        await _failures(bench, namespace, seen, singles[: bench.sizes.failures])
        await jobs.delete_all(namespace)
        await seen.until("the single jobs' pods to go", lambda: not seen.pods, STORM_SECONDS)
        storm, before = job_names(1000, bench.sizes.storm_jobs), bench.operator.cost().requests
        await _operators_storm(bench, namespace, seen, storm, num)
        await _idle(bench, "running")
        await _finish(bench, namespace, seen, storm)
        sent = bench.operator.cost().requests - before
        of_jobs = sum(n for what, n in sent.items() if not what.startswith("log ") and "leases" not in what)
        bench.row("requests per job, whole life", of_jobs / len(storm), "", "", _listed(sent, len(storm)))
        bench.row("status writes per job, whole life", sent["patch ddpjobs"] / len(storm), "", "<= 6")
        num_events = sent["create events"] + sent["patch events"]
        bench.row("Events per job, whole life", num_events / len(storm), "", "<= 2")
        await _idle(bench, "finished")


async def many(bench: Bench) -> None:
    """Very many jobs: created, run, observed by a restarted operator, finished."""
    namespace, names = await create_namespace(bench.client, "many"), job_names(0, bench.sizes.many_jobs)
    async with Observer(namespace) as seen:
        await _operators_storm(bench, namespace, seen, names, bench.sizes.many_pods)
        num_errors = bench.operator.cost().num_errors
        await _restart(bench, seen)
        await _finish(bench, namespace, seen, names)
        num_errors += bench.operator.cost().num_errors
        remark = f"{bench.operator.num_complaints()} warnings in the log, {seen.num_in['Failed']} jobs failed"
        bench.row("failed reconciles", num_errors, "", "0", remark)


async def _one_at_a_time(bench: Bench, namespace: Namespace, seen: Observer) -> list[str]:
    names, num, seconds = job_names(0, bench.sizes.singles), bench.sizes.storm_pods, []
    for name in names:
        began = time.monotonic()
        posting = asyncio.create_task(jobs.create(namespace, name, num))
        at = await seen.until(f"{num} pods of {name}", partial(seen.lives, name, num), JOB_SECONDS)
        await posting
        seconds.append(at - began)
        await _settle(seen, name, num)
    bench.row_of(f"a job created, its {num} pods exist", seconds, "<= 25 ms")
    return names


async def _failures(bench: Bench, namespace: Namespace, seen: Observer, names: Sequence[str]) -> None:
    """One pod of each job fails; time until all ranks live again."""
    num, seconds, renewed = bench.sizes.storm_pods, [], []
    for name in names:
        old = seen.uids(name)

        def is_whole_again(name: str = name, old: set[str] = old) -> bool:
            return seen.lives(name, num) and seen.uids(name) != old

        began = time.monotonic()
        posting = asyncio.create_task(namespace.ends(sorted(seen.living[name])[1 % num], 1))
        at = await seen.until(f"{name} to be whole again", is_whole_again, JOB_SECONDS)
        await posting
        seconds.append(at - began)
        renewed.append(len(seen.uids(name) - old))
        await _settle(seen, name, num)
    remark = f"{median(renewed):.0f} of {num} pods new"
    bench.row_of("a pod fails, the gang is whole again", seconds, "< 500 ms", remark)


async def _settle(seen: Observer, name: str, num: int) -> None:
    """Wait until the job runs and is written about: the next one must not meet its scheduling."""
    await seen.until(f"{name} to run", partial(seen.runs, name, num), JOB_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)


async def _storm(bench: Bench, seen: Observer, creating: Any, what: str, total: int) -> None:
    """Pods exist once a watch has shown them; the figures include what scheduler, nodes and controllers do meanwhile."""
    cpu_before, began = bench.cpu_seconds(), time.monotonic()
    task = asyncio.create_task(creating)
    at = await seen.until(f"{total} pods", lambda: seen.num_living == total, STORM_SECONDS)
    await task
    spent = bench.cpu_spent(cpu_before)
    bench.row(f"{what}: pods", total / (at - began), "pods/s", remark=f"all exist after {at - began:.1f} s; {spent}")
    at = await seen.until("them to run", lambda: seen.num_running == total, STORM_SECONDS)
    bench.row(f"{what}: all pods run", at - began, "s", remark=bench.cpu_spent(cpu_before))


async def _operators_storm(bench: Bench, namespace: Namespace, seen: Observer, names: Sequence[str], num: int) -> None:
    before, what, total = bench.operator.cost(), f"{len(names)} jobs x {num} pods at once", len(names) * num
    await _storm(bench, seen, at_once(jobs.create(namespace, name, num) for name in names), what, total)
    await asyncio.sleep(QUIET_SECONDS)
    cost = bench.operator.cost()
    spent = cost.cpu_seconds - before.cpu_seconds
    remark = (
        f"{1000 * spent / total:.2f} ms a pod, so one core is full at {total / spent:.0f} pods a second"
        if spent
        else ""
    )
    bench.row(f"{what}: operator CPU until all run", spent, "s", "", remark)
    bench.row(f"{what}: memory", cost.memory_bytes / MIB, "MiB", "", f"peak {cost.peak_memory_bytes / MIB:.0f} MiB")


async def _finish(bench: Bench, namespace: Namespace, seen: Observer, names: Sequence[str]) -> None:
    before, began = bench.operator.cost().cpu_seconds, time.monotonic()
    finished = seen.num_in["Succeeded"] + len(names)
    await at_once(namespace.ends(pod, 0) for pod in list(chain(*(seen.living[name] for name in names))))
    ended_at = time.monotonic()
    at = await seen.until("the jobs to finish", lambda: seen.num_in["Succeeded"] == finished, STORM_SECONDS)
    await asyncio.sleep(QUIET_SECONDS)
    remark = f"{at - ended_at:.1f} s after the end of the last pod was requested, with"
    remark += f" {bench.operator.cost().cpu_seconds - before:.1f} CPU-seconds of the operator"
    bench.row(f"{len(names)} jobs' pods succeed: all jobs finished", at - began, "s", remark=remark)


async def _idle(bench: Bench, state: str) -> None:
    before, began = bench.operator.cost().requests, time.monotonic()
    await asyncio.sleep(bench.sizes.idle_seconds)
    minutes = (time.monotonic() - began) / 60
    sent = bench.operator.cost().requests - before
    reads = sum(count for what, count in sent.items() if what.startswith("log "))
    what = f"while all jobs are {state}"
    others = sent.total() - reads
    bench.row(f"requests {what}", others / minutes, "per minute", "< 15", _listed(sent, minutes))
    bench.row(f"progress reads {what}", reads / minutes, "per minute")


async def _restart(bench: Bench, seen: Observer) -> None:
    bench.operator.stop()
    changes, began = seen.num_job_changes, time.monotonic()
    bench.operator.start()
    ready_seconds = time.monotonic() - began
    await asyncio.sleep(QUIET_SECONDS)
    cost = bench.operator.cost()
    writes = sum(n for sent, n in cost.requests.items() if not sent.startswith(READS) and "leases" not in sent)
    remark = f"{cost.cpu_seconds:.1f} CPU-seconds, {cost.memory_bytes / MIB:.0f} MiB"
    bench.row("restarted operator, caches in step", ready_seconds, "s", "", remark)
    remark = f"its Lease apart; {seen.num_job_changes - changes} changes of jobs seen; {_listed(cost.requests, 1)}"
    bench.row("writes of a restarted operator", writes, "", "0", remark)


def _listed(requests: Counter[str], per: float) -> str:
    return ", ".join(f"{count / per:.2f} {what}" for what, count in requests.most_common())
