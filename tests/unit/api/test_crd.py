"""The CRD that is generated from the models."""

from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob_operator.api import crd
from ddpjob_operator.api.names import MAX_NODES


def test_the_schema_is_structural() -> None:
    text = crd.render()
    assert not [word for word in ("$ref", "anyOf", "allOf", "title:", "null") if word in text]


def test_manifests_of_the_earlier_version_work_and_are_stored_as_the_current_one() -> None:
    """One schema, so that no conversion webhook is needed and an operator of either version can act on every job."""
    versions = {version["name"]: version for version in crd.custom_resource_definition()["spec"]["versions"]}
    assert [name for name, version in versions.items() if version["served"]] == ["v1beta1", "v1alpha1"]
    assert [name for name, version in versions.items() if version["storage"]] == ["v1beta1"]
    assert "ddpjob.dev/v1beta1" in versions["v1alpha1"]["deprecationWarning"]
    assert versions["v1alpha1"]["schema"] == versions["v1beta1"]["schema"]


def test_every_list_says_how_it_is_merged() -> None:
    def lists(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if schema.get("type") == "array":
            yield schema
        for value in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
            if isinstance(value, Mapping):
                yield from lists(value)

    for version in crd.custom_resource_definition()["spec"]["versions"]:
        found = list(lists(version["schema"]["openAPIV3Schema"]))
        assert len(found) > 10
        assert all("x-kubernetes-list-type" in each for each in found)


def test_every_number_and_time_of_the_status_has_bounds() -> None:
    """A tenant may have the right to write it, and decisions count up to these numbers."""

    def unbounded(schema: Mapping[str, Any], path: str) -> Iterator[str]:
        if schema.get("type") == "integer" and not {"minimum", "maximum"} <= schema.keys():
            yield path
        if schema.get("format") == "date-time" and "pattern" not in schema:
            yield path
        for name, inner in schema.get("properties", {}).items():
            yield from unbounded(inner, f"{path}.{name}")
        if "items" in schema:
            yield from unbounded(schema["items"], path)

    status = crd.job_schema()["properties"]["status"]
    codes = {f"{failure}.{name}" for failure in ("failure", "attempts") for name in ("exitCode", "signal")}
    assert set(unbounded(status, "")) == {f".{path}" for path in codes}
    replicas = status["properties"]["replicas"]
    assert (replicas["minimum"], replicas["maximum"]) == (1, MAX_NODES)
