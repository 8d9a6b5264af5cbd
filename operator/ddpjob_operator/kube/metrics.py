"""What the operator counts about itself. No label ever names an object."""

from prometheus_client import Counter, Histogram

API_REQUESTS = Counter("ddpjob_api_requests_total", "Requests to the API server.", ["verb", "resource", "code"])
RECONCILES = Counter("ddpjob_reconciles_total", "Reconciles of a job.", ["result"])
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
