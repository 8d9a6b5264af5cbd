"""Objects are decoded without managedFields, whatever their other fields hold."""

import json
from typing import Any

import pytest

from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.resources import DDPJOBS, PODS

#: What a user can put into a pod to look like the end or the start of managedFields.
HOSTILE = ['}]},"spec":', ',"managedFields":[', '\\}]},\\"spec\\":', '}],"']
SET_BY = [
    {"manager": "ddpjob", "fieldsV1": {"f:metadata": {"f:finalizers": {'v:"}]},\\"spec\\":"': {}, ".": {}}}}},
    {"manager": "kubelet", "fieldsV1": {'k:{"name":"}],"}': {}}, "subresource": "status"},
]


def pod(text: str, managed: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod with its fields in the order of the API server."""
    metadata = {"name": "p", "annotations": {text: text}, "ownerReferences": [{"name": "j"}], "managedFields": managed}
    env = [{"name": text, "value": text}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "env": env}]}, "status": {"message": text}}


def without(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "metadata": {name: value for name, value in of["metadata"].items() if name != "managedFields"}}


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_each_pod_of_a_list_or_an_event_loses_its_managed_fields_and_nothing_else(text: str) -> None:
    pods = [pod(text, SET_BY), pod("", SET_BY), pod(text, [{"manager": text, "fieldsV1": {text: {}}}])]
    assert decoded(PODS, compact({"items": pods})) == {"items": [without(each) for each in pods]}
    event = {"type": "MODIFIED", "object": pods[0]}
    assert decoded(PODS, compact(event)) == {"type": "MODIFIED", "object": without(pods[0])}


@pytest.mark.parametrize("text", HOSTILE)
def test_an_unexpected_order_of_fields_is_decoded_whole(text: str) -> None:
    by_name = json.loads(json.dumps({"items": [pod(text, SET_BY), pod(text, SET_BY)]}, sort_keys=True))
    assert decoded(PODS, compact(by_name)) == by_name
    assert decoded(DDPJOBS, compact(by_name)) == by_name


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        decoded(PODS, b'{"metadata":{"a":1,"managedFields":[{}]},"spec":')
