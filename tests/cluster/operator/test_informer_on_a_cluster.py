"""The informer and the audit against a real API server; tests/unit/kube/test_informer.py has watches that break."""

import asyncio
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Pod
from ddpjob_operator.kube.cache.audit import Audit
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import PODS
from support.engine import new_store
from support.operator_cluster import SECONDS, Namespace


def pod(name: str, job_uid: str = "j1", rank: int = 0) -> dict[str, Any]:
    """A pod as the operator creates it. Its owner does not exist; the type of the owner keeps the garbage collector away."""
    labels = {
        names.MANAGED_BY: names.MANAGER,
        names.LABEL_JOB_UID: job_uid,
        names.LABEL_ATTEMPT: "1",
        names.LABEL_RANK: str(rank),
    }
    owner = {"apiVersion": "test/v1", "kind": names.KIND, "name": "j", "uid": job_uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "trainer", "image": "x"}]},
    }


def known(store: Store, namespace: Namespace, name: str) -> Pod | None:
    return store.pods.get(namespace.name, name)


async def test_a_version_too_old_for_the_server_leads_to_a_list(client: Client, namespace: Namespace) -> None:
    store = new_store()
    await namespace.apply("a")
    informer = Informer(client, store.jobs, namespace.name)
    informer._version = "1"  # older than the CRD; as after an hour of sleep
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), SECONDS)
    task.cancel()
    assert store.job((namespace.name, "a"))


async def test_an_audit_repairs_what_every_watch_has_missed(client: Client, namespace: Namespace) -> None:
    store = new_store()
    ghost, unseen = pod("ghost"), pod("unseen")
    unseen["spec"]["schedulerName"] = "nobody"  # so that nothing changes it
    store.pods.put(await client.create(PODS, namespace.name, ghost))
    await namespace.delete_pod("ghost", grace_seconds=0)
    await client.create(PODS, namespace.name, unseen)
    audit = Audit(client, (namespace.name,), interval_seconds=60)
    assert await audit.compare(store.pods) == 2
    assert known(store, namespace, "ghost") is None
    assert known(store, namespace, "unseen")
    assert await audit.compare(store.pods) == 0
