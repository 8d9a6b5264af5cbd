"""Pods in the network of their node (`hostNetwork` of the template), where all jobs share the ports of the node.

The default port would collide as soon as the ranks 0 of two jobs run on the same node. So each attempt has a port of its
own, which rank 0 declares: the scheduler then never puts two pods with the same port on one node.
"""

import hashlib

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.model import Body, Job

#: Below the ports of Services of type NodePort (30000 to 32767) and those that Linux gives to connections (from 32768).
PORTS = range(20_000, 30_000)


def uses_host_network(spec: DDPJobSpec) -> bool:
    """Whether the pods of the job are in the network of their nodes."""
    pod = spec.template.spec if spec.template else None
    return pod is not None and (pod.model_extra or {}).get("hostNetwork") is True


def master_port(job: Job, spec: DDPJobSpec) -> int:
    """The port of rank 0: the one of the spec, or one of the attempt where the default would be the port of the node."""
    if spec.master_port != contract.DEFAULT_MASTER_PORT or not uses_host_network(spec):
        return spec.master_port
    digest = hashlib.sha256(f"{job.uid}/{job.status.attempt}".encode()).digest()
    return PORTS[int.from_bytes(digest[:4]) % len(PORTS)]


def ports_of_rank_0(job: Job, spec: DDPJobSpec) -> list[Body]:
    """What rank 0 declares in the network of the node, so that no other pod there uses its port; nothing in a network of pods.

    The template may have declared it, in this container or another one, and a pod can do so only once.
    """
    port = master_port(job, spec)
    if not uses_host_network(spec) or port in _declared(spec):
        return []
    return [{"containerPort": port, "hostPort": port}]


def _declared(spec: DDPJobSpec) -> list[object]:
    """The TCP ports that containers of the template declare, which in the network of the node are those of the node."""
    pod = spec.template.spec if spec.template else None
    declared = [(each.model_extra or {}).get("ports") for each in (pod.containers if pod else None) or ()]
    ports = [port for ports in declared if isinstance(ports, list) for port in ports if isinstance(port, dict)]
    return [port.get("containerPort") for port in ports if port.get("protocol", "TCP") == "TCP"]
