"""A tenant that attacks the job of another namespace on real nodes, with a network that enforces NetworkPolicies."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import testbed
from support.job_on_cluster import RESOURCES, JobOnCluster, fresh_namespace

#: Reduces without end, and keeps something in the store of the process group that a stranger would read.
VICTIM = """\
import time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.distributed_c10d._get_default_store().set("secret", "of team a")
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.2)
"""

JOIN = """\
import datetime, sys
import torch.distributed as dist

try:
    store = dist.TCPStore(sys.argv[1], 29500, timeout=datetime.timedelta(seconds=30), wait_for_workers=False)
    print("joined with", store.num_keys(), "keys")
except (RuntimeError, ValueError) as error:
    print("kept out:", type(error).__name__)
"""

#: Lines that imitate progress, move the cursor, hide text, are cut within a character, and are megabytes long.
HOSTILE = r"""
import os, sys

write = sys.stdout.buffer.write
write(b'ddpjob-progress {"step": 1e999, "totalSteps": -1, "loss": "\x1b[2J"}\n')
write(b'ddpjob-progress {"step": 7, "metrics": {"\xe2\x80\xae\x1b]0;owned\x07": 1}}\n')
for _ in range(64):
    write(b"x" * 2**16)
write(b"\n\x1b[31m\x1b]8;;http://evil\x07click\x1b]8;;\x07 \xe2\x82\n")
sys.stdout.flush()
raise RuntimeError("\x1b[2J all is well\u202e" + "y" * 100_000)
"""


def stranger(name: str, namespace: str, address: str, image: str, job_uid: str) -> dict[str, Any]:
    """A pod that tries to join the store at this address. It carries the labels of the ranks that it attacks."""
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "c", "image": image, "command": ["python", "-c", JOIN, address], "securityContext": allowed}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"ddpjob.dev/job-uid": job_uid}},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**container, "resources": RESOURCES}],
        },
    }


@pytest.fixture
def other_namespace(machine: testbed.Cluster, installed_operator: None) -> Iterator[str]:  # noqa: ARG001 the operator is there before
    with fresh_namespace(machine.kubectl) as name:
        yield name


def test_a_stranger_cannot_join_the_store_of_a_job_where_policies_are_enforced(
    machine: testbed.Cluster, job: JobOnCluster, other_namespace: str
) -> None:
    job.apply_script("train", VICTIM, nodes=2, command=["python", "/script/train.py"])
    job.wait_phase("Running")
    rank0 = job.pods(1)[0]
    uid, image = rank0["metadata"]["labels"]["ddpjob.dev/job-uid"], rank0["spec"]["containers"][0]["image"]

    def attempts(what: str) -> set[str]:
        """What became of an attack at the address of rank 0, and of one at its name."""
        addresses = {f"{what}-address": rank0["status"]["podIP"], f"{what}-name": f"train-master.{job.namespace}.svc"}
        pods = [stranger(name, other_namespace, address, image, uid) for name, address in addresses.items()]
        machine.kubectl.apply(pods)
        testbed.wait_for(f"the pods {sorted(addresses)} to end", lambda: have_ended(addresses))
        logs = {name: machine.kubectl("logs", name, "-n", other_namespace) for name in addresses}
        return {outcome for log in logs.values() for outcome in re.findall(r"^(joined|kept out)", log, re.MULTILINE)}

    def have_ended(names: Iterable[str]) -> bool:
        pods = machine.kubectl.json("get", "pods", *names, "-n", other_namespace)["items"]
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)

    assert attempts("open") == {"joined"}, "the attack works where nothing prevents it"
    with machine.enforced_network_policies() as isolates:
        testbed.wait_for("the policy to be enforced", lambda: isolates(job.namespace, "train-1-0"))
        assert attempts("closed") == {"kept out"}
    assert (job.status["phase"], job.status["attempt"]) == ("Running", 1)


def test_hostile_lines_of_a_log_become_a_short_printable_status(job: JobOnCluster) -> None:
    job.apply_script("hostile", HOSTILE, command=["python", "/script/train.py"], restart={"maxRestarts": 0})
    status = job.wait_end()
    texts = list(texts_of(status))
    assert status["reason"] == "ProgramError"
    assert [text for text in texts if not text.isprintable() or len(text) > 2000] == []


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a status, its keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from texts_of(item)
