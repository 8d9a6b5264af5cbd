"""The jobs that are timed: rendered from a template, made, ended."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.operators.api import Api, Body

#: A DDPJob. On KWOK nodes its pods end as soon as they are deleted: no grace is in any figure.
DDPJOB = """
apiVersion: ddpjob.dev/v1beta1
kind: DDPJob
metadata: {name: $name}
spec:
  nodes: $pods
  trainer: {recipe: digits}
  template: {metadata: {annotations: {testbed/stop-after: 0s}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """A custom resource and how its pods are found."""

    template: string.Template
    """YAML of one object with `$name` and `$pods`."""
    plural: str
    pod_selector: str

    @classmethod
    def of(cls, template: Path | None, plural: str, pod_selector: str) -> JobKind:
        """Read the template; without one it is a DDPJob."""
        text = DDPJOB if template is None else template.read_text()
        return cls(template=string.Template(text), plural=plural, pod_selector=pod_selector)

    def body(self, name: str, num_pods: int) -> Body:
        """One job. Raises ValueError for a template that is not one YAML object."""
        body = yaml.safe_load(self.template.substitute(name=name, pods=num_pods))
        if not isinstance(body, dict) or not {"apiVersion", "kind", "metadata"} <= body.keys():
            raise ValueError("the job template must be one YAML object with apiVersion, kind and metadata")
        return body

    def path(self, namespace: str) -> str:
        """Where the jobs of a namespace are."""
        version = self.body("x", 1)["apiVersion"]
        return f"/apis/{version}/namespaces/{namespace}/{self.plural}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of one namespace."""

    api: Api
    kind: JobKind
    namespace: str

    @property
    def path(self) -> str:
        """Where they are."""
        return self.kind.path(self.namespace)

    @property
    def pods_path(self) -> str:
        """Where their pods are."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def make_namespace(self) -> None:
        """Make the namespace and wait until pods can be created there."""
        await self.api.send("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        page = await self.api.send("GET", accounts)
        if page["items"]:
            return
        async with asyncio.timeout(30):
            async for _ in self.api.watch(accounts, "", page["metadata"]["resourceVersion"]):
                return

    async def create(self, name: str, num_pods: int) -> None:
        """Create one job."""
        await self.api.send("POST", self.path, self.kind.body(name, num_pods))

    async def create_all(self, names: Sequence[str], num_pods: int) -> None:
        """Create many at once."""
        await asyncio.gather(*(self.create(name, num_pods) for name in names))

    async def end_pod(self, pod: str, exit_code: int) -> None:
        """Have the KWOK node end a pod's program."""
        annotations = {"testbed/exit-code": str(exit_code)}
        await self.api.merge_patch(f"{self.pods_path}/{pod}", {"metadata": {"annotations": annotations}})

    async def end_pods(self, pods: Iterable[str], exit_code: int) -> None:
        """The same for many at once."""
        await asyncio.gather(*(self.end_pod(pod, exit_code) for pod in pods))

    async def delete_all(self, names: Iterable[str]) -> None:
        """Delete jobs as kubectl does."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        await asyncio.gather(*(self.api.send("DELETE", f"{self.path}/{name}", options) for name in names))


def job_names(first: int, number: int) -> list[str]:
    """Names that sort as they count."""
    return [f"b{index:04d}" for index in range(first, first + number)]


def bare_pod(name: str) -> Body:
    """A pod about as large as an operator's, for the floor."""
    env = [{"name": f"VARIABLE_{index}", "value": f"value-{index}"} for index in range(20)]
    container = {"name": "main", "image": "none", "command": ["true"], "env": env}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"bench": "floor", "pod": name}},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]},
    }
    return dict(json.loads(json.dumps(body)))


def bare_policy(name: str) -> Body:
    """A NetworkPolicy like that of a job, for the floor."""
    pods = {"podSelector": {"matchLabels": {"bench": name}}}
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def bare_service(name: str) -> Body:
    """A headless Service of the pod with this name and `-0`, for the floor."""
    spec = {"clusterIP": "None", "selector": {"pod": f"{name}-0"}, "ports": [{"port": 29500}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
