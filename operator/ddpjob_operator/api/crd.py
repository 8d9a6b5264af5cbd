"""The CustomResourceDefinition, made from the spec and status models.

`python -m ddpjob_operator.api.crd` prints it; `make generate` writes it to the manifests and the chart. Kubernetes wants
a structural schema: no `$ref`, no nullable union, no `title`. This module translates schemas and contains no field names.
"""

import sys
from collections.abc import Mapping
from typing import Any

import yaml

from ddpjob_operator.api import names
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus

Schema = dict[str, Any]

_HEADER = "# Generated from ddpjob_operator.api by `make generate`; manual changes are lost.\n"

_NAME_RULES = [
    {
        "rule": f"self.metadata.name.size() <= {names.MAX_JOB_NAME_LENGTH}",
        "message": (
            f"metadata.name is longer than {names.MAX_JOB_NAME_LENGTH} characters, so that the names of its pods and its"
            " Service would be too long: shorten it"
        ),
    },
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": (
            "metadata.name must begin with a letter and contain only a-z, 0-9 and '-' (a DNS-1035 label), because the"
            " name of a Service is derived from it: rename it"
        ),
    },
]

_COLUMNS = [
    ("State", "string", ".status.phase", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Attempt", "integer", ".status.attempt", 0),
    ("Step", "integer", ".status.progress.step", 0),
    ("ETA", "string", ".status.progress.eta", 0),
    ("Metric", "string", ".status.progress.headline", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Message", "string", ".status.message", 1),
]


def custom_resource_definition() -> dict[str, Any]:
    """The CRD of DDPJob as a plain object."""
    version = _version()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["ddp"],
                "categories": ["all"],
            },
            # All versions have one schema, so that conversion only replaces `apiVersion` and needs no webhook.
            "conversion": {"strategy": "None"},
            "versions": [
                {"name": names.VERSION, "served": True, "storage": True, **version},
                *(
                    {"name": name, "served": True, "storage": False, **_deprecation(name), **version}
                    for name in names.DEPRECATED_VERSIONS
                ),
            ],
        },
    }


def field_paths(schema: Mapping[str, Any], path: str = "") -> frozenset[str]:
    """The paths of all fields of a schema, such as status.restarts.counted. The items of a list have the path of the list."""
    found = {path} if path else set()
    for name, inner in schema.get("properties", {}).items():
        found |= field_paths(inner, f"{path}.{name}" if path else name)
    return frozenset(found | field_paths(schema["items"], path) if "items" in schema else found)


def fields() -> frozenset[str]:
    """The paths of all fields of a DDPJob's spec and status that this release knows."""
    properties = job_schema()["properties"]
    return field_paths({"properties": {part: properties[part] for part in ("spec", "status")}})


def _deprecation(version: str) -> dict[str, Any]:
    warning = f"{names.GROUP}/{version} {names.KIND} is deprecated: use {names.API_VERSION}, which has the same fields"
    return {"deprecated": True, "deprecationWarning": warning}


def job_schema() -> Schema:
    """The structural schema of a DDPJob, which is the same in all versions."""
    schema = submitted_schema()
    status = structural(DDPJobStatus.model_json_schema())
    return {**schema, "properties": {**schema["properties"], "status": status}}


def submitted_schema() -> Schema:
    """The structural schema of what a user submits: a DDPJob without a status."""
    return {
        "type": "object",
        "description": "DDPJob is a PyTorch DistributedDataParallel job: a group of pods that start, restart and end together.",
        "required": ["spec"],
        "x-kubernetes-validations": _NAME_RULES,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(DDPJobSpec.model_json_schema()),
        },
    }


def _version() -> dict[str, Any]:
    """What all versions have in common."""
    return {
        "subresources": {
            "status": {},
            # `kubectl scale`, and whatever else changes a number of replicas, such as a HorizontalPodAutoscaler.
            "scale": {
                "specReplicasPath": ".spec.nodes",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "priority": priority}
            for name, type_, path, priority in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": job_schema()},
    }


def structural(schema: Mapping[str, Any]) -> Schema:
    """A JSON schema of pydantic as a structural schema of Kubernetes."""
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    schema = _resolved(schema, definitions)
    if schema.get("x-kubernetes-int-or-string"):
        return {"x-kubernetes-int-or-string": True}
    result = {key: value for key, value in schema.items() if key not in ("$defs", "title", "additionalProperties")}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if result.get("type") == "integer":
        result["format"] = "int64"
    if result.get("default", ...) in (
        None,
        [],
    ):  # an absent field means the same, and `kubectl describe` shows no empty headings
        del result["default"]
    if isinstance(result.get("default"), Mapping):
        result["default"] = {}  # the API server adds the defaults of the fields
    if result.get("type") == "array":
        result.setdefault("x-kubernetes-list-type", "atomic")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            result[key] = _structural(schema[key], definitions)
    if "properties" in schema:
        result["properties"] = {name: _structural(value, definitions) for name, value in schema["properties"].items()}
    return result


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without references and without `X | None`: in the Kubernetes API a field that is not set is absent."""
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolved({**definitions[schema["$ref"].removeprefix("#/$defs/")], **own}, definitions)
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        (present,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        own = {key: value for key, value in schema.items() if key != "anyOf"}
        return _resolved({**present, **own}, definitions)
    return schema


def render() -> str:
    """The CRD as YAML text."""
    return _HEADER + yaml.dump(custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes what two versions share twice: Kubernetes' tools refuse references within YAML."""

    def ignore_aliases(self, data: object) -> bool:
        """Whether `data` is written out wherever it occurs."""
        del data
        return True


if __name__ == "__main__":
    sys.stdout.write(render())
