"""Topology without a scheduler that knows gangs: the pods of an attempt attract each other."""

from typing import Any

import pytest

from ddpjob_operator.core.render.pods import create_pod
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.none import NO_PROVIDER
from support.builders import job

TERM = {
    "topologyKey": "rack",
    "labelSelector": {"matchLabels": {"ddpjob.dev/job-uid": "job-uid", "ddpjob.dev/attempt": "1"}},
}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": TERM}]}


@pytest.mark.parametrize(
    ("provider", "mode", "affinity"),
    [
        (NO_PROVIDER, "required", REQUIRED),
        (NO_PROVIDER, "preferred", PREFERRED),
        (NativeV1Alpha2(), "required", None),
        (NativeV1Alpha2(), "preferred", PREFERRED),
    ],
)
def test_topology_becomes_pod_affinity_where_the_provider_has_no_constraint(
    provider: Any, mode: str, affinity: Any
) -> None:
    of = job(nodes=2, scheduling={"topology": {"key": "rack", "mode": mode}})
    assert of.spec is not None
    spec = create_pod(of, of.spec, "image:1", 0, provider=provider).body["spec"]
    assert spec.get("affinity", {}).get("podAffinity") == affinity


def test_affinities_of_the_template_and_avoided_nodes_stay() -> None:
    own = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    of = job(
        nodes=2,
        scheduling={"topology": {"key": "rack", "mode": "required"}},
        template={"spec": {"affinity": {"podAffinity": own}}},
    )
    assert of.spec is not None
    affinity = create_pod(of, of.spec, "image:1", 0, avoided=["bad"]).body["spec"]["affinity"]
    assert affinity["podAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}, TERM]
    }
    assert "nodeAffinity" in affinity


@pytest.mark.parametrize(
    "affinity",
    [
        "near",
        ["near"],
        {"podAffinity": "near"},
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": 3}},
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": {"weight": 1}}},
    ],
    ids=str,
)
def test_an_affinity_that_is_none_is_left_for_the_api_server_to_refuse(affinity: Any) -> None:
    """Rendering failed before anything was sent, so the job stayed without pods and without a status."""
    of = job(nodes=2, scheduling={"topology": {"key": "rack"}}, template={"spec": {"affinity": affinity}})
    assert of.spec is not None
    assert create_pod(of, of.spec, "image:1", 0).body["spec"]["affinity"] == affinity
