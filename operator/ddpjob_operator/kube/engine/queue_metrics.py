"""The metrics of the work queue, with the names, labels, meanings and buckets that controller-runtime gives them.

Dashboards and alerts for operators in Go therefore fit this one. The name `ddpjob` is the queue of jobs; the queue of Events
has the name `events`.
"""

import time

from prometheus_client import Counter, Gauge, Histogram

from ddpjob_operator.kube.keys import Key

_NAMES = ("name", "controller")
_CONTROLLER = "ddpjob"
_BUCKETS = tuple(1e-8 * 10**exponent for exponent in range(12))

_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker.", _NAMES)
_ADDS = Counter("workqueue_adds_total", "Keys added to the work queue.", _NAMES)
_RETRIES = Counter("workqueue_retries_total", "Keys added again after a failure.", _NAMES)
_WAIT_SECONDS = Histogram(
    "workqueue_queue_duration_seconds", "Time that a key waited for a worker.", _NAMES, buckets=_BUCKETS
)
_WORK_SECONDS = Histogram("workqueue_work_duration_seconds", "Time that a worker had a key.", _NAMES, buckets=_BUCKETS)
_UNFINISHED_SECONDS = Gauge(
    "workqueue_unfinished_work_seconds", "Sum of the times for which workers have had their keys.", _NAMES
)
_LONGEST_SECONDS = Gauge(
    "workqueue_longest_running_processor_seconds", "Longest time for which a worker has had its key.", _NAMES
)


class QueueMetrics:
    """The metrics of one queue. The gauges show the queue of this name that was created last."""

    def __init__(self, name: str) -> None:
        self._adds = _ADDS.labels(name, _CONTROLLER)
        self._retries = _RETRIES.labels(name, _CONTROLLER)
        self._wait_seconds = _WAIT_SECONDS.labels(name, _CONTROLLER)
        self._work_seconds = _WORK_SECONDS.labels(name, _CONTROLLER)
        self._added_at: dict[Key, float] = {}
        self._taken_at: dict[Key, float] = {}
        _DEPTH.labels(name, _CONTROLLER).set_function(lambda: len(self._added_at))
        _UNFINISHED_SECONDS.labels(name, _CONTROLLER).set_function(lambda: sum(self._unfinished()))
        _LONGEST_SECONDS.labels(name, _CONTROLLER).set_function(lambda: max(self._unfinished(), default=0.0))

    def added(self, key: Key) -> None:
        """The key was added; it may have been waiting already."""
        if key not in self._added_at:
            self._adds.inc()
            self._added_at[key] = time.monotonic()

    def retried(self) -> None:
        """A key is added again after a failure."""
        self._retries.inc()

    def taken(self, key: Key) -> None:
        """A worker has taken the key."""
        self._taken_at[key] = time.monotonic()
        self._wait_seconds.observe(self._taken_at[key] - self._added_at.pop(key))

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        self._work_seconds.observe(time.monotonic() - self._taken_at.pop(key))

    def _unfinished(self) -> list[float]:
        """For how long each busy worker has had its key."""
        now = time.monotonic()
        return [now - taken_at for taken_at in self._taken_at.values()]
