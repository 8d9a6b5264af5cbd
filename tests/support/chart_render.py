"""The chart as Helm renders it, and Helm itself."""

import functools
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from support import REPOSITORY
from testbed.helm import Helm

CHART = REPOSITORY / "charts" / "ddpjob-operator"
RELEASE = "ddpjob-operator"
NAMESPACE = "ddpjob-system"
Object = dict[str, Any]

#: The C one reads the CRD ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


#: Sees no cluster.
helm = Helm()


def render(
    values: Mapping[str, Any] | None = None, *options: str, release: str = RELEASE, namespace: str = NAMESPACE
) -> list[Object]:
    """The chart's objects, those of `helm test` included.

    Raises:
        HelmError: the values are refused.
    """
    text = _template(json.dumps(values or {}), options, release, namespace)
    return [document for document in yaml.load_all(text, _Loader) if document]


@functools.cache
def _template(values: str, options: tuple[str, ...], release: str, namespace: str) -> str:
    return helm("template", release, CHART, "--namespace", namespace, *options, values=json.loads(values))


def is_test(item: Object) -> bool:
    """Whether the object exists only while `helm test` runs."""
    return bool(item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test")


def installed(objects: list[Object]) -> list[Object]:
    """Those that `helm install` creates."""
    return [item for item in objects if not is_test(item)]


def of_test(objects: list[Object]) -> list[Object]:
    """Those that `helm test` creates."""
    return [item for item in objects if is_test(item)]


def identity(item: Object) -> tuple[str, str | None, str]:
    """Kind, namespace and name."""
    return item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of the kind (and name)."""
    found = [item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    assert len(found) == 1, f"expected one {kind} {name or ''}, found {[identity(item) for item in found]}"
    return found[0]


def deployment(values: Mapping[str, Any] | None = None) -> Object:
    """The operator's Deployment."""
    return find(render(values), "Deployment")


def operator_pod(values: Mapping[str, Any] | None = None) -> Object:
    """The spec of the operator's pod."""
    spec: Object = deployment(values)["spec"]["template"]["spec"]
    return spec


def operator_arguments(values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE) -> list[str]:
    """The operator's command line in the pod `ddpjob-operator-0`, its variables replaced as the kubelet does."""
    (container,) = find(render(values, namespace=namespace), "Deployment")["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.name": "ddpjob-operator-0"}
    arguments: list[str] = container["args"]
    for variable in container["env"]:
        text = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        arguments = [argument.replace(f"$({variable['name']})", text) for argument in arguments]
    return arguments


def readme_commands(beginning: str, **names: str) -> list[list[str]]:
    """The chart's README's commands that begin so, with the words in capitals replaced, as argument lists."""
    text = (CHART / "README.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    found = [line for line in lines if line.startswith(beginning)]
    assert found
    for word, name in names.items():
        found = [re.sub(rf"\b{word}\b", name, line) for line in found]
    return [shlex.split(line) for line in found]
