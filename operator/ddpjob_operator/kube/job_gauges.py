"""Gauges of the jobs that exist, computed from the caches at each scrape.

Standbys have the same caches and report the same values. The labels of gauges of single jobs are not `namespace` and `pod`,
which Prometheus sets to those of the operator.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from ddpjob_operator.api.names import ConditionType, Phase
from ddpjob_operator.core.measurements import OTHER, WAITING_REASONS, waiting_gang
from ddpjob_operator.core.model import Job

#: A job that the operator has not acted on yet.
_NEW = "New"
_PHASES = (_NEW, *Phase)


def job_gauges(jobs: Sequence[Job], max_jobs: int, now: float) -> Iterator[Metric]:
    """Gauges of all jobs together, and of at most `max_jobs` single jobs."""
    yield _by_phase(jobs)
    yield GaugeMetricFamily(
        "ddpjob_jobs_stalled",
        "DDPJobs that the operator cannot act on until somebody changes something.",
        value=sum(job.status.condition(ConditionType.STALLED) for job in jobs),
    )
    yield from _waiting(jobs, now)
    if max_jobs:
        yield from _single(jobs, max_jobs)


def _by_phase(jobs: Sequence[Job]) -> Metric:
    gauge = GaugeMetricFamily("ddpjob_jobs", "DDPJobs by phase.", labels=["phase"])
    number = Counter(_phase(job.status.phase) for job in jobs)
    for phase in _PHASES:
        gauge.add_metric([phase], number[phase])
    if number[OTHER]:
        gauge.add_metric([OTHER], number[OTHER])
    return gauge


def _phase(phase: str | None) -> str:
    return _NEW if phase is None else phase if phase in _PHASES else OTHER


def _waiting(jobs: Sequence[Job], now: float) -> Iterator[Metric]:
    number = GaugeMetricFamily("ddpjob_gangs_waiting", "Gangs that do not run yet, by reason.", labels=["reason"])
    longest = GaugeMetricFamily(
        "ddpjob_gangs_waiting_longest_seconds", "How long the first of them has waited.", labels=["reason"]
    )
    gangs = [gang for job in jobs if not job.deleting and (gang := waiting_gang(job.status)) is not None]
    for reason in WAITING_REASONS:
        waited = [max(0.0, now - gang.since) for gang in gangs if gang.reason == reason]
        number.add_metric([reason], len(waited))
        longest.add_metric([reason], max(waited, default=0.0))
    yield number
    yield longest


def _single(jobs: Sequence[Job], max_jobs: int) -> Iterator[Metric]:
    """Gauges of the jobs that began last, without those that have finished."""
    unfinished = [job for job in jobs if job.status.start_time and not job.status.finished]
    unfinished.sort(key=lambda job: (job.status.start_time or "", job.namespace, job.name), reverse=True)
    labels = ["job_namespace", "job_name"]
    gauges = {
        "step": GaugeMetricFamily("ddpjob_job_step", "Optimizer steps that are done.", labels=labels),
        "total_steps": GaugeMetricFamily("ddpjob_job_total_steps", "Steps of the whole training.", labels=labels),
        "loss": GaugeMetricFamily("ddpjob_job_loss", "Latest training loss.", labels=labels),
        "eta": GaugeMetricFamily("ddpjob_job_eta_seconds", "Estimated time until the end.", labels=labels),
        "goodput": GaugeMetricFamily("ddpjob_job_goodput", "Share of the time that was training.", labels=labels),
    }
    for job in unfinished[:max_jobs]:
        for name, value in _values(job).items():
            if value is not None:
                gauges[name].add_metric([job.namespace, job.name], value)
    yield from gauges.values()
    yield GaugeMetricFamily(
        "ddpjob_jobs_without_gauges",
        "Unfinished jobs beyond the number of those that have gauges of their own.",
        value=max(0, len(unfinished) - max_jobs),
    )


def _values(job: Job) -> dict[str, float | None]:
    progress, time = job.status.progress, job.status.time
    goodput = time.goodput_percent if time else None
    values: dict[str, float | None] = {"goodput": None if goodput is None else goodput / 100}
    if progress is not None:
        values |= {"step": progress.step, "total_steps": progress.total_steps, "loss": progress.loss}
        values |= {"eta": progress.eta_seconds}
    return values
