"""Finds in the background what a plan looks up, and has the job reconciled again when an answer is there.

A worker never waits for an answer: a node that does not answer, or a log of megabytes, must not hold up another job.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ddpjob_operator.core.actions import Lookup, ReadLog, ReadNode, ReadScaleUp, ReadWarning
from ddpjob_operator.core.failure.cause import pods_with_logs_in_use
from ddpjob_operator.core.model import LogEnd, Observed, ScaleUp
from ddpjob_operator.kube.keys import Key, key_of
from ddpjob_operator.kube.lookups.log_reader import LogReader
from ddpjob_operator.kube.lookups.node_reader import NodeReader, NodeState
from ddpjob_operator.kube.lookups.pod_events import SCALE_UPS, WARNINGS, PodEvents
from ddpjob_operator.transport.client import Client


class Lookups:
    """Answers by job."""

    def __init__(self, client: Client, changed: Callable[[Key], None]) -> None:
        """`changed` is called with the key of a job that should be reconciled again."""
        self._logs = LogReader(client, changed)
        self._nodes = NodeReader(client, changed)
        self._warnings = PodEvents(client, changed, WARNINGS)
        self._scale_ups = PodEvents(client, changed, SCALE_UPS)

    def logs(self, key: Key) -> Mapping[str, LogEnd]:
        """What the logs of a job show that were read, by uid of the pod."""
        return self._logs.of(key)

    def nodes(self, key: Key, state: NodeState) -> frozenset[str]:
        """Those of the nodes that the job looks up which are known to be in this state."""
        return self._nodes.in_state(key, state)

    def warnings(self, key: Key) -> Mapping[str, str]:
        """What the kubelet reports, by uid of the pod that the job looks up."""
        return self._warnings.of(key)

    def scale_up(self, key: Key) -> ScaleUp | None:
        """Whether nodes for the job are on their way, if it looks this up."""
        return next(iter(self._scale_ups.of(key).values()), None)

    def update(self, observed: Observed, lookups: Iterable[Lookup]) -> None:
        """Look these up for the job from now on, and drop what no decision needs any more."""
        key = key_of(observed.job)
        lookups = tuple(lookups)
        logs = [lookup for lookup in lookups if isinstance(lookup, ReadLog)]
        self._logs.want(key, logs, pods_with_logs_in_use(observed))
        self._nodes.want(key, frozenset(lookup.name for lookup in lookups if isinstance(lookup, ReadNode)))
        self._warnings.want(key, next((lookup.uid for lookup in lookups if isinstance(lookup, ReadWarning)), None))
        self._scale_ups.want(key, next((lookup.job for lookup in lookups if isinstance(lookup, ReadScaleUp)), None))

    def forget(self, key: Key) -> None:
        """Drop everything of a job that is gone."""
        self._logs.forget(key)
        self._nodes.want(key, frozenset())
        self._warnings.want(key, None)
        self._scale_ups.want(key, None)

    async def stop(self) -> None:
        """Stop all lookups."""
        await asyncio.gather(self._logs.stop(), self._nodes.stop(), self._warnings.stop(), self._scale_ups.stop())
