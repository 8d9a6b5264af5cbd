"""Each action of a plan, also where the cluster differs from what the plan observed."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import pytest

import testbed
from ddpjob_operator.api.template import Template
from ddpjob_operator.core.actions import (
    CreateObject,
    CreatePod,
    DeleteJob,
    DeletePod,
    DeletePods,
    LowerPodDeadline,
    PatchObject,
)
from ddpjob_operator.core.model import SERVICE, Job
from ddpjob_operator.core.render.pods import create_pod
from ddpjob_operator.core.render.service import ensure_service
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, NotFoundError
from ddpjob_operator.transport.resources import SERVICES, Resource
from support.engine import new_store
from support.operator_cluster import Namespace, eventually, gets_the_right

QUOTAS = Resource(prefix="/api/v1", plural="resourcequotas")
WEBHOOKS = Resource(prefix="/apis/admissionregistration.k8s.io/v1", plural="validatingwebhookconfigurations")


@dataclass(frozen=True)
class Bench:
    """A job in its namespace, and an actuator for it."""

    namespace: Namespace
    store: Store
    expectations: Expectations
    rejections: Rejections
    actuator: Actuator
    job: Job

    @property
    def key(self) -> tuple[str, str]:
        return (self.job.namespace, self.job.name)

    @property
    def messages(self) -> dict[str, str]:
        return {name: rejection.message for name, rejection in self.rejections.of(self.key).items()}

    def pod(self, rank: int) -> CreatePod:
        assert self.job.spec is not None
        return create_pod(self.job, self.job.spec, "trainer:1", rank)

    def service(self) -> CreateObject:
        assert self.job.spec is not None
        (action,) = ensure_service(self.job, self.job.spec, None)
        assert isinstance(action, CreateObject)
        return action

    async def run(self, *actions: Any) -> None:
        await self.actuator.run(self.job, actions)


@pytest.fixture
async def bench(client: Client, namespace: Namespace) -> Bench:
    memories = JobMemories()
    store, expectations, rejections = new_store(), Expectations(memories), Rejections(memories)
    actuator = Actuator(client, store, expectations, rejections)
    store.jobs.put(await namespace.apply("j", nodes=2))
    known = store.job((namespace.name, "j"))
    assert known is not None
    return Bench(namespace, store, expectations, rejections, actuator, known.job)


async def test_objects_that_already_exist_for_this_job_count_as_created(bench: Bench) -> None:
    await bench.run(bench.service(), bench.pod(0))
    await bench.run(bench.service(), bench.pod(0), bench.pod(1))
    assert bench.messages == {}
    assert set(await bench.namespace.pods()) == {"j-1-0", "j-1-1"}
    assert set(await bench.namespace.services()) == {"j-master"}
    assert bench.expectations.open_actions(bench.key, (bench.pod(0),)) == ()


async def test_a_service_of_the_same_name_without_an_owner_is_reported_and_left_alone(
    bench: Bench, client: Client
) -> None:
    stranger = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "j-master"}}
    spec = {"clusterIP": "None", "ports": [{"port": 1}]}
    await client.create(SERVICES, bench.namespace.name, {**stranger, "spec": spec})
    await bench.run(bench.service(), bench.pod(0))
    assert "belongs to no owner" in bench.messages["j-master"]
    assert await bench.namespace.pods() == {}  # Nothing after what was refused.
    assert bench.expectations.seconds_left(bench.key) is None


async def test_a_typo_in_the_template_is_reported_with_the_server_s_message(bench: Bench) -> None:
    assert bench.job.spec is not None
    template = Template.model_validate({"spec": {"nodeSelektor": {"a": "b"}}})
    with_typo = bench.job.spec.model_copy(update={"template": template})
    await bench.run(create_pod(bench.job, with_typo, "trainer:1", 0))
    assert "nodeSelektor" in bench.messages["j-1-0"]
    assert bench.rejections.seconds_to_retry(bench.key) > 0


async def test_the_message_of_a_quota_is_kept_until_the_pod_is_no_longer_wanted(bench: Bench, client: Client) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}, "apiVersion": "v1", "kind": "ResourceQuota"}
    await client.create(QUOTAS, bench.namespace.name, quota)

    async def refused() -> str:  # the API server's admission watches quotas and sees a new one after a moment
        await bench.run(DeletePods(attempt=None), bench.pod(0))
        return bench.messages.get("j-1-0", "")

    assert "exceeded quota" in await eventually("the quota to be in force", refused)
    bench.rejections.keep_wanted(bench.key, (bench.pod(0),))
    assert bench.messages
    bench.rejections.keep_wanted(bench.key, (bench.pod(1),))
    assert bench.messages == {}


@pytest.fixture
async def broken_webhook(client: Client, namespace: Namespace) -> None:
    """A webhook for pods of the namespace whose server does not listen."""
    webhook = {
        "name": "nobody.listens.test",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    await client.create(WEBHOOKS, None, {**head, "metadata": {"name": namespace.name}, "webhooks": [webhook]})


@pytest.mark.usefixtures("broken_webhook")
async def test_a_webhook_that_does_not_answer_counts_as_a_failure_and_not_as_a_rejection(bench: Bench) -> None:
    async def failed() -> str:  # the API server sees a new webhook after a moment
        await bench.run(DeletePods(attempt=None), bench.pod(0))
        return bench.messages.get("j-1-0", "")

    assert "failed calling webhook" in await eventually("the webhook to be in force", failed)
    assert bench.rejections.of(bench.key)["j-1-0"].by_failure


async def test_only_the_pod_that_was_observed_is_deleted(bench: Bench) -> None:
    await bench.run(bench.pod(0))
    uid = (await bench.namespace.pods())["j-1-0"]["metadata"]["uid"]
    await bench.run(DeletePod(name="j-1-0", uid="another", grace_seconds=1))
    assert "deletionTimestamp" not in (await bench.namespace.pods())["j-1-0"]["metadata"]
    await bench.run(DeletePod(name="j-1-0", uid=uid, grace_seconds=0))
    await bench.run(DeletePod(name="j-1-0", uid=uid, grace_seconds=0))
    assert await bench.namespace.pods() == {}


async def test_a_pod_is_deleted_only_in_the_version_that_was_observed(bench: Bench) -> None:
    await bench.run(bench.pod(0))
    metadata = (await bench.namespace.pods())["j-1-0"]["metadata"]
    deletion = DeletePod(name="j-1-0", uid=metadata["uid"], grace_seconds=0, resource_version="1")
    with pytest.raises(ConflictError):
        await bench.run(deletion)
    assert "j-1-0" in await bench.namespace.pods()
    assert deletion in bench.expectations.open_actions(bench.key, [deletion]), "it is tried again"

    async def its_latest_version_is_deleted() -> bool:
        version = (await bench.namespace.pods())["j-1-0"]["metadata"]["resourceVersion"]
        with contextlib.suppress(ConflictError):  # The scheduler or the node has changed it meanwhile.
            await bench.run(replace(deletion, resource_version=version))
        return await bench.namespace.pods() == {}

    await eventually("the deletion of the latest version", its_latest_version_is_deleted)


async def test_only_the_pod_that_was_observed_gets_a_deadline_and_twice_is_harmless(bench: Bench) -> None:
    await bench.run(bench.pod(0))
    uid = (await bench.namespace.pods())["j-1-0"]["metadata"]["uid"]
    await bench.run(LowerPodDeadline(name="j-1-0", uid="another"), LowerPodDeadline(name="gone", uid="x"))
    assert "activeDeadlineSeconds" not in (await bench.namespace.pods())["j-1-0"]["spec"]
    for _ in range(2):
        await bench.run(LowerPodDeadline(name="j-1-0", uid=uid))
    assert (await bench.namespace.pods())["j-1-0"]["spec"]["activeDeadlineSeconds"] == 1


async def test_a_service_is_patched_only_in_the_version_that_was_observed(bench: Bench) -> None:
    await bench.run(bench.service())
    old = (await bench.namespace.services())["j-master"]
    bench.store.services.put(old)

    def pointing_at(attempt: str, version: str) -> PatchObject:
        patch = {"spec": {"selector": {"ddpjob.dev/attempt": attempt}}}
        return PatchObject(kind=SERVICE, name="j-master", resource_version=version, patch=patch)

    await bench.run(pointing_at("2", old["metadata"]["resourceVersion"]))
    seen = bench.store.service_of(bench.job)
    assert seen is not None
    assert seen.selector["ddpjob.dev/attempt"] == "2"  # Known at once, without a watch.
    with pytest.raises(ConflictError):
        await bench.run(pointing_at("1", old["metadata"]["resourceVersion"]))
    service = (await bench.namespace.services())["j-master"]
    assert service["spec"]["selector"]["ddpjob.dev/attempt"] == "2"


async def test_only_the_job_that_was_observed_is_deleted(bench: Bench) -> None:
    with pytest.raises(ConflictError):
        await bench.run(DeleteJob(name="j", uid="another"))
    assert await bench.namespace.job("j")
    await bench.run(DeleteJob(name="j", uid=bench.job.uid))
    with pytest.raises(NotFoundError):
        await bench.namespace.job("j")


class OwnersOfAnotherGroup(Client):
    """Creates pods whose owners are of this API group."""

    group = ""

    async def create(self, resource: Resource, namespace: str | None, body: Any, **options: Any) -> Any:
        (owner,) = body["metadata"]["ownerReferences"]
        metadata = {**body["metadata"], "ownerReferences": [{**owner, "apiVersion": f"{self.group}/v1"}]}
        return await super().create(resource, namespace, {**body, "metadata": metadata}, **options)


async def test_pods_of_a_type_that_was_installed_a_moment_ago_are_tried_again_until_they_are_admitted(
    cluster: testbed.ControlPlane, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's admission does not know the type of a pod's owner for some seconds after a CRD was installed."""
    group, home = f"{bench.namespace.name}.test", bench.namespace.name
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
        {"apiGroups": [group], "resources": ["ddpjobs/finalizers"], "verbs": ["update"]},
    ]
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": group}}
    cluster.kubectl.apply({**head, "rules": rules})
    cluster.kubectl("create", "clusterrolebinding", group, f"--clusterrole={group}", f"--serviceaccount={home}:default")
    await gets_the_right(cluster, f"{home}:default", "create", "pods")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig_of_account(home, "default")))
    async with OwnersOfAnotherGroup((await load_access()).configuration) as client:
        client.group = group
        actuator = Actuator(client, bench.store, bench.expectations, bench.rejections)
        with pytest.raises(ConflictError, match="cannot find RESTMapping"):
            await actuator.run(bench.job, [bench.pod(0)])
        crd = cluster.kubectl.json("get", "crd", "ddpjobs.ddpjob.dev")
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec = {"group": group, "names": crd["spec"]["names"], "scope": "Namespaced", "versions": [version]}
        metadata = {"name": f"ddpjobs.{group}"}
        cluster.kubectl.apply(
            {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": metadata, "spec": spec}
        )

        async def admitted() -> bool:
            with contextlib.suppress(ConflictError):
                await actuator.run(bench.job, [bench.pod(0)])
            return "j-1-0" in await bench.namespace.pods()

        await eventually("the pod to be created", admitted, seconds=240)
        assert bench.messages == {}
