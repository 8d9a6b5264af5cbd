"""Finds the answers to a plan's questions in the background, and has the job looked at again when one is there.

A worker never waits for an answer: a node that does not answer, or a log of megabytes, must hold up no other job.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.core.model import Body, Job, Lookup, ReadLog, ReadNode, ReadWarning
from ddpjob_operator.kube.keys import Key, key_of
from ddpjob_operator.kube.lookups.pod_warnings import PodWarnings
from ddpjob_operator.kube.metrics import LOG_READS
from ddpjob_operator.kube.transport.client import Client
from ddpjob_operator.kube.transport.errors import ApiError, NotFoundError
from ddpjob_operator.kube.transport.resources import NODES

logger = logging.getLogger(__name__)

LOG_KEEP_BYTES = 64 * 1024
#: What is read to keep the end of: limitBytes cuts the end, so it must hold all of the lines asked for.
LOG_LIMIT_BYTES = 1024 * 1024
LOG_LINES = 1000
LOG_SECONDS = 5.0
NODE_SECONDS = 2.0
#: A failing node or a bad image can have hundreds of jobs ask at once; the connections are for the pods' creation first.
MAX_LOGS_AT_ONCE = 8
MAX_NODES_AT_ONCE = 4
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class NodeState(Enum):
    """What decisions need to know of a node."""

    WELL = "well"
    CORDONED = "accepts no new pods"
    GONE = "its kubelet has stopped reporting, it is out of service, or it does not exist"


class Questions:
    """Answers by job. Each log is read once; a node is read again every two seconds while somebody asks."""

    def __init__(self, client: Client, answered: Callable[[Key], None]) -> None:
        """`answered` is called with the job's key when it should be looked at again."""
        self._client = client
        self._answered = answered
        self._logs: dict[Key, dict[str, str]] = {}
        self._reading: dict[tuple[Key, str], asyncio.Task[None]] = {}
        self._askers: dict[str, set[Key]] = {}
        self._nodes_asked: dict[Key, frozenset[str]] = {}
        self._states: dict[str, NodeState] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._warnings = PodWarnings(client, answered)
        self._log_slots = asyncio.Semaphore(MAX_LOGS_AT_ONCE)
        self._node_slots = asyncio.Semaphore(MAX_NODES_AT_ONCE)

    def warnings(self, key: Key) -> Mapping[str, str]:
        """What a kubelet complains of, by uid of the pod that the job asks about."""
        return self._warnings.of(key)

    def logs(self, key: Key) -> Mapping[str, str]:
        """The answered logs of a job, by uid of the pod."""
        return dict(self._logs.get(key, {}))

    def nodes(self, key: Key, state: NodeState) -> frozenset[str]:
        """Those of the nodes that the job asks for which are known to be in this state."""
        return frozenset(node for node in self._nodes_asked.get(key, ()) if self._states.get(node) == state)

    def ask(self, job: Job, questions: Iterable[Lookup], pod_uids: Iterable[str]) -> None:
        """These are the job's questions now. Answers about pods that are gone are dropped."""
        key = key_of(job)
        nodes: set[str] = set()
        warning: ReadWarning | None = None
        for question in questions:
            match question:
                case ReadLog():
                    self._read_log(key, question)
                case ReadNode():
                    nodes.add(question.name)
                case ReadWarning():
                    warning = question
        self._ask_nodes(key, frozenset(nodes))
        self._warnings.ask(key, warning)
        if job.status.finished:
            self._logs.pop(key, None)
        if key in self._logs:
            alive = set(pod_uids)
            self._logs[key] = {uid: text for uid, text in self._logs[key].items() if uid in alive}

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._ask_nodes(key, frozenset())
        self._warnings.ask(key, None)
        self._logs.pop(key, None)
        for asked in [asked for asked in self._reading if asked[0] == key]:
            self._reading.pop(asked).cancel()

    async def stop(self) -> None:
        """Read nothing any more."""
        tasks = [*self._reading.values(), *self._polls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._warnings.stop(), return_exceptions=True)

    def _read_log(self, key: Key, question: ReadLog) -> None:
        if question.uid not in self._logs.get(key, {}) and (key, question.uid) not in self._reading:
            task = asyncio.create_task(self._answer_log(key, question), name=f"log of {question.pod}")
            self._reading[key, question.uid] = task

    async def _answer_log(self, key: Key, question: ReadLog) -> None:
        text = ""
        try:
            async with self._log_slots:
                text = await self._client.pod_log(
                    key[0],
                    question.pod,
                    container=MAIN_CONTAINER,
                    tail_lines=LOG_LINES,
                    limit_bytes=LOG_LIMIT_BYTES,
                    timeout_seconds=LOG_SECONDS,
                )
            LOG_READS.labels("cause", "ok").inc()
        except ApiError as error:
            logger.info("the log of pod %s/%s cannot be read: %s", key[0], question.pod, error)
            LOG_READS.labels("cause", "failed").inc()
        except Exception:  # whatever it is: a question without an answer would hold up the end of the job
            logger.exception("the log of pod %s/%s could not be read", key[0], question.pod)
        self._logs.setdefault(key, {})[question.uid] = text.encode()[-LOG_KEEP_BYTES:].decode(errors="replace")
        self._reading.pop((key, question.uid), None)
        self._answered(key)

    def _ask_nodes(self, key: Key, nodes: frozenset[str]) -> None:
        for node in self._nodes_asked.get(key, frozenset()) - nodes:
            self._askers[node].discard(key)
        if not nodes:
            self._nodes_asked.pop(key, None)
            return
        self._nodes_asked[key] = nodes
        for node in nodes:
            new = key not in self._askers.setdefault(node, set())
            self._askers[node].add(key)
            if new and self._states.get(node, NodeState.WELL) != NodeState.WELL:
                self._answered(key)  # known already, and only changes are told
            if node not in self._polls:
                self._polls[node] = asyncio.create_task(self._poll(node), name=f"node {node}")

    async def _poll(self, node: str) -> None:
        """Look at one node until nobody asks any more."""
        while self._askers[node]:
            state = await self._state_of(node)
            if state is not None and state != self._states.get(node, NodeState.WELL):
                self._states[node] = state
                for key in self._askers[node]:
                    self._answered(key)
            await asyncio.sleep(NODE_SECONDS)
        del self._askers[node], self._polls[node]
        self._states.pop(node, None)

    async def _state_of(self, node: str) -> NodeState | None:
        """None where it cannot be told: the answer stays what it was."""
        try:
            async with self._node_slots:
                return node_state(await self._client.get(NODES, None, node))
        except NotFoundError:
            return NodeState.GONE
        except ApiError as error:
            logger.warning("node %s cannot be read, so it counts as alive unless known better: %s", node, error)
            return None


def node_state(node: Body) -> NodeState:
    """The state of a node by what the control plane, or an administrator, says of it.

    A node is gone if its kubelet has stopped reporting (Ready is Unknown) or if an administrator has tainted it as out of
    service. With Ready=False the kubelet reports a fault, for example of the network or of the runtime: its containers may
    run on, and it stops deleted pods itself.
    """
    spec = node.get("spec", {})
    taints = spec.get("taints") or ()
    conditions = node.get("status", {}).get("conditions") or ()
    silent = any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)
    if silent or any(taint["key"] == OUT_OF_SERVICE for taint in taints):
        return NodeState.GONE
    return NodeState.CORDONED if spec.get("unschedulable") else NodeState.WELL
