"""What the operator counts about itself and about the jobs it runs. No label ever names an object.

`core/measurements.py` says what is counted of jobs, and when.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Counter, Histogram

from ddpjob_operator.core.measurements import FAILED, SUCCEEDED, Measurement, Quantity, finish_labels, restart_labels

API_REQUESTS = Counter("ddpjob_api_requests_total", "Requests to the API server.", ["verb", "resource", "code"])
RECONCILES = Counter("ddpjob_reconciles_total", "Reconciles of a job.", ["result"])
for _result in ("done", "conflict", "throttled", "failed", "defect"):  # An alert is about the first defect.
    RECONCILES.labels(_result)
RECONCILE_SECONDS = Histogram(
    "ddpjob_reconcile_seconds",
    "Duration of a reconcile.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
PODS_CREATED = Counter("ddpjob_pods_created_total", "Pods created.")
STATUS_WRITES = Counter("ddpjob_status_writes_total", "Status writes.", ["kind"])
AUDIT_REPAIRS = Counter(
    "ddpjob_audit_repairs_total", "Entries that an audit found missing, stale or dead.", ["resource"]
)
EXPECTATIONS_OVERDUE = Counter(
    "ddpjob_expectations_overdue_total", "How often the watch did not show an own write in time."
)
LOG_READS = Counter("ddpjob_log_reads_total", "Reads of pod logs.", ["purpose", "result"])
EVENT_WRITES = Counter("ddpjob_events_total", "Events about jobs: written, failed, dropped, over budget.", ["result"])


def count_request(verb: str, resource: str, code: str) -> None:
    """Count a request to the API server; `code` is the HTTP status, or `none` where no answer came."""
    API_REQUESTS.labels(verb, resource, code).inc()


_MINUTES = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600)
_DAYS = (60, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 3 * 86400, 7 * 86400, 14 * 86400, 30 * 86400)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

_JOB_COUNTERS: Mapping[Quantity, Counter] = {
    Quantity.RESTARTS: Counter(
        "ddpjob_job_restarts_total",
        "Restarts of gangs by the cause; counted: whether restart.maxRestarts limits them.",
        ["reason", "counted"],
    ),
    Quantity.FINISHED: Counter(
        "ddpjob_jobs_finished_total", "Jobs that have succeeded or failed.", ["outcome", "reason"]
    ),
    Quantity.LOST_SECONDS: Counter(
        "ddpjob_lost_seconds_total",
        "Time of jobs that failures cost: discarded training, and the time until the next attempt begins.",
        ["cause"],
    ),
}
_JOB_HISTOGRAMS: Mapping[Quantity, Histogram] = {
    Quantity.QUEUE_SECONDS: Histogram(
        "ddpjob_job_queue_seconds", "Time until all pods of an attempt had a node.", buckets=_MINUTES
    ),
    Quantity.START_SECONDS: Histogram(
        "ddpjob_job_start_seconds", "Time from then until all ranks of the attempt ran.", buckets=_MINUTES
    ),
    Quantity.RECOVERY_SECONDS: Histogram(
        "ddpjob_job_recovery_seconds", "Time from a failure until all ranks ran again.", buckets=_MINUTES
    ),
    Quantity.RUN_SECONDS: Histogram(
        "ddpjob_job_run_seconds",
        "Time that a finished job spent on nodes, in all attempts.",
        ["outcome"],
        buckets=_DAYS,
    ),
    Quantity.GOODPUT: Histogram(
        "ddpjob_job_goodput_ratio",
        "Share of a finished job's time that was training and not lost.",
        ["outcome"],
        buckets=_SHARES,
    ),
}
# A series that appears with its first event shows no increase to Prometheus, so the expected ones begin at 0.
for _labels in restart_labels():
    _JOB_COUNTERS[Quantity.RESTARTS].labels(*_labels)
    _JOB_COUNTERS[Quantity.LOST_SECONDS].labels(_labels[0])
for _labels in finish_labels():
    _JOB_COUNTERS[Quantity.FINISHED].labels(*_labels)
for _outcome in (SUCCEEDED, FAILED):
    _JOB_HISTOGRAMS[Quantity.RUN_SECONDS].labels(_outcome)
    _JOB_HISTOGRAMS[Quantity.GOODPUT].labels(_outcome)


def record(measurements: Iterable[Measurement]) -> None:
    """Add what was measured to the metrics."""
    for measurement in measurements:
        if (counter := _JOB_COUNTERS.get(measurement.quantity)) is not None:
            counter.labels(*measurement.labels).inc(measurement.value)
        else:
            histogram = _JOB_HISTOGRAMS[measurement.quantity]
            (histogram.labels(*measurement.labels) if measurement.labels else histogram).observe(measurement.value)
