"""The states of the nodes that decisions depend on, read again every few seconds while a job needs them.

A program that hangs in a file system outlives its grace for as long as the file system is away, on all nodes of its gang. So the
rate of all reads together is bounded.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.kube.lookups.keyed_tasks import KeyedTasks
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, NotFoundError, RejectedError
from ddpjob_operator.transport.resources import NODES

logger = logging.getLogger(__name__)

READ_AGAIN_SECONDS = 2.0
#: Most reads in a second, of all nodes together.
READS_PER_SECOND = 50.0
MAX_AT_ONCE = 4
#: How often each node is tried while this operator may not read nodes.
REFUSED_SECONDS = 60.0
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class NodeState(Enum):
    """The states of a node that decisions depend on."""

    WELL = "well"
    CORDONED = "accepts no new pods"
    GONE = "its kubelet has stopped reporting, it is out of service, or it does not exist"


class NodeReader:
    """Polls each node once, however many jobs need it."""

    def __init__(self, client: Client, changed: Callable[[Key], None]) -> None:
        """`changed` is called with the key of a job when a node that it needs is in another state."""
        self._client = client
        self._changed = changed
        self._wanted_by: dict[str, set[Key]] = {}
        self._wanted: dict[Key, frozenset[str]] = {}
        self._states: dict[str, NodeState] = {}
        self._polls = KeyedTasks[str]()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._is_refused = False

    def in_state(self, key: Key, state: NodeState) -> frozenset[str]:
        """Those of the nodes that the job needs which are known to be in this state."""
        return frozenset(node for node in self._wanted.get(key, ()) if self._states.get(node) == state)

    def want(self, key: Key, nodes: frozenset[str]) -> None:
        """Poll these nodes for the job, and no others."""
        for node in self._wanted.pop(key, frozenset()) - nodes:
            self._wanted_by[node].discard(key)
        if nodes:
            self._wanted[key] = nodes
        for node in nodes:
            is_new = key not in self._wanted_by.setdefault(node, set())
            self._wanted_by[node].add(key)
            if is_new and self._states.get(node, NodeState.WELL) != NodeState.WELL:
                self._changed(key)  # The state is known already, and a poll reports changes only.
            self._start(node)

    async def stop(self) -> None:
        """Stop all polls."""
        await self._polls.stop()

    def _start(self, node: str) -> None:
        self._polls.start(node, lambda: self._poll(node), f"node {node}")

    async def _poll(self, node: str) -> None:
        """Read one node again and again until no job needs it."""
        while self._wanted_by[node]:
            state = await self._read(node)
            if state is not None and state != self._states.get(node, NodeState.WELL):
                self._states[node] = state
                for key in self._wanted_by[node]:
                    self._changed(key)
            await asyncio.sleep(REFUSED_SECONDS if self._is_refused else pause_seconds(len(self._wanted_by)))
        del self._wanted_by[node]
        self._states.pop(node, None)

    async def _read(self, node: str) -> NodeState | None:
        """The state of a node; None if it cannot be read, which leaves the known state as it is."""
        try:
            async with self._slots:
                body = await self._client.get(NODES, None, node)
            self._is_refused = False
            return node_state(body)
        except NotFoundError:
            return NodeState.GONE
        except RejectedError as error:
            if not self._is_refused:
                logger.warning("nodes cannot be read, so lost nodes are not noticed: %s", error)
            self._is_refused = True
        except ApiError as error:
            logger.warning("node %s cannot be read, so its known state is kept: %s", node, error)
        except Exception:  # an unexpected object must not end the polling of this node
            logger.exception("node %s cannot be read, so its known state is kept", node)
        return None


def pause_seconds(num_nodes: int) -> float:
    """The time between two reads of a node while so many are read."""
    return max(READ_AGAIN_SECONDS, num_nodes / READS_PER_SECOND)


def node_state(node: Body) -> NodeState:
    """The state of a node as reported by the control plane or set by an administrator.

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
