"""What a namespace admits and adds: pod security levels, service accounts, pull secrets, limit ranges and quotas."""

from typing import Any

import pytest

from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import RejectedError
from ddpjob_operator.transport.resources import Resource
from support.operator_cluster import Namespace

pytestmark = pytest.mark.usefixtures("operator_process")

NAMESPACES = Resource(prefix="/api/v1", plural="namespaces")
SERVICE_ACCOUNTS = Resource(prefix="/api/v1", plural="serviceaccounts")
LIMIT_RANGES = Resource(prefix="/api/v1", plural="limitranges")
QUOTAS = Resource(prefix="/api/v1", plural="resourcequotas")
HOST_NETWORK = {"spec": {"hostNetwork": True}}
CAPABILITIES = {"add": ["IPC_LOCK"]}
IPC_LOCK = {"spec": {"containers": [{"name": "trainer", "securityContext": {"capabilities": CAPABILITIES}}]}}


@pytest.mark.parametrize(
    ("level", "above", "spec"),
    [
        pytest.param("restricted", None, {}, id="restricted"),
        pytest.param("baseline", "restricted", {"securityProfile": "baseline"}, id="baseline"),
        pytest.param("restricted", None, {"command": None, "trainer": {"recipe": "digits"}}, id="built-in trainer"),
        pytest.param("privileged", "baseline", {"template": HOST_NETWORK}, id="privileged"),
        pytest.param("privileged", "baseline", {"template": IPC_LOCK}, id="IPC_LOCK"),
    ],
)
async def test_a_job_runs_at_its_level_and_the_level_above_is_named_where_it_refuses_it(
    client: Client, namespace: Namespace, level: str, above: str | None, spec: dict[str, Any]
) -> None:
    async def enforce(name: str) -> None:
        labels = {"pod-security.kubernetes.io/enforce": name}
        await client.merge_patch(NAMESPACES, None, namespace.name, {"metadata": {"labels": labels}})

    await enforce(above or level)
    if above is not None:
        await namespace.admits("refuse a pod", lambda found: isinstance(found, RejectedError), hostNetwork=True)
    await namespace.apply("train", nodes=2, **spec)
    if above is not None:
        await namespace.shows("train", f'violates PodSecurity "{above}', reason="PodRejected")
        assert await namespace.pods() == {}
        await enforce(level)
    await namespace.reaches("train", "Running")


async def test_pull_secrets_and_the_service_account_come_from_the_template_or_from_the_namespace(
    client: Client, namespace: Namespace
) -> None:
    of_the_namespace = {"imagePullSecrets": [{"name": "of-the-namespace"}]}
    await client.merge_patch(SERVICE_ACCOUNTS, namespace.name, "default", of_the_namespace)
    await namespace.admits(
        "add the pull secret",
        lambda found: (
            not isinstance(found, RejectedError)
            and found["spec"].get("imagePullSecrets") == of_the_namespace["imagePullSecrets"]
        ),
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}
    await client.create(SERVICE_ACCOUNTS, namespace.name, account)
    chosen = {"serviceAccountName": "trainer", "imagePullSecrets": [{"name": "of-the-job"}]}
    await namespace.apply("own", template={"spec": chosen})
    await namespace.apply("common")
    for name in ("own", "common"):
        assert (await namespace.reaches(name, "Running"))["attempt"] == 1

    pods = await namespace.pods()
    found = {name: (pod["spec"]["serviceAccountName"], pod["spec"]["imagePullSecrets"]) for name, pod in pods.items()}
    assert found == {
        "own-1-0": ("trainer", [{"name": "of-the-job"}]),
        "common-1-0": ("default", [{"name": "of-the-namespace"}]),
    }
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in pods.values())


async def test_a_service_account_that_does_not_exist_is_named(namespace: Namespace) -> None:
    await namespace.apply("train", template={"spec": {"serviceAccountName": "nobody"}})
    await namespace.shows("train", "nobody", reason="PodRejected")


async def test_defaults_of_a_limit_range_are_no_edit_and_satisfy_a_quota_for_the_whole_gang(
    client: Client, namespace: Namespace
) -> None:
    hard = {"requests.cpu": "2", "limits.memory": "2Gi", "pods": "4"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}}
    await client.create(QUOTAS, namespace.name, quota)
    defaults = {"type": "Container", "defaultRequest": {"cpu": "1"}, "default": {"cpu": "1", "memory": "1Gi"}}
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "team"}, "spec": {"limits": [defaults]}}
    await client.create(LIMIT_RANGES, namespace.name, limits)

    def has_default(found: dict[str, Any] | RejectedError) -> bool:
        if isinstance(found, RejectedError):
            return False
        return bool(found["spec"]["containers"][0]["resources"].get("requests", {}).get("cpu") == "1")

    await namespace.admits("add the default", has_default)
    await namespace.apply("first", nodes=2)
    status = await namespace.reaches("first", "Running")
    assert status["restarts"]["counted"] == status["restarts"]["infrastructure"] == 0
    pods = await namespace.pods()
    assert {pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in pods.values()} == {"1"}

    await namespace.apply("second", nodes=2)
    await namespace.shows("second", reason="QuotaExceeded")
    await namespace.succeeds("first")  # ended pods use no quota
    await namespace.reaches("second", "Running")
