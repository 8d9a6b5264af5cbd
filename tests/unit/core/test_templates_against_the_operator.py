"""A template says something about what the operator sets as well: neither loses what is not in contradiction."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.core.render.placeholders import create_placeholder
from ddpjob_operator.core.render.pods import PodManifest, create_pod
from ddpjob_operator.core.render.spares import create_spare
from ddpjob_operator.scheduling.discovery import CANDIDATES
from support.builders import job, program

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("affinity", [{"nodeAffinity": {PREFERRED: [{"weight": 1}]}}, {"podAffinity": {}}, None, {}])
def test_nodes_are_avoided_next_to_the_preferences_of_the_template(affinity: Any) -> None:
    of = program(nodes=2, template={"spec": {"affinity": affinity}})
    found = create_pod(of, of.spec, "image", 0, avoided=("bad-node",)).body["spec"]["affinity"]
    terms = found["nodeAffinity"][PREFERRED]
    own = ((affinity or {}).get("nodeAffinity") or {}).get(PREFERRED, [])
    assert terms[:-1] == own
    assert terms[-1]["preference"]["matchFields"][0]["values"] == ["bad-node"]


ON_THE_HOST: dict[str, Any] = {"nodes": 2, "restart": {"inPlace": True, "spares": 1}}
#: What the API server does not store as null, since the CRD declares it.
DECLARED = {"containers", "initContainers", "restartPolicy", "terminationGracePeriodSeconds", "name", "env"}


def nulls() -> list[dict[str, Any]]:
    """Templates that set one field of what the operator renders to null."""
    of = job(template={"spec": {"hostNetwork": True}}, gpusPerNode=1, **ON_THE_HOST)
    spec = create_pod(of, of.spec, "image", 0, avoided=("bad",)).body["spec"]
    (main,) = spec["containers"]
    of_pod = [{field: None} for field in spec if field not in DECLARED]
    of_main = [{"containers": [{"name": MAIN_CONTAINER, field: None}]} for field in main if field not in DECLARED]
    return [*of_pod, *of_main]


@pytest.mark.parametrize("template", nulls(), ids=str)
def test_a_field_that_the_template_sets_to_null_is_no_defect(template: dict[str, Any]) -> None:
    of = job(template={"spec": {"hostNetwork": True, **template}}, gpusPerNode=1, **ON_THE_HOST)
    assert of.spec is not None
    for candidate in CANDIDATES:
        manifest = PodManifest(job=of, spec=of.spec, image="image", rank=0, avoided=("bad",), provider=candidate.newest)
        manifest.render()
        create_placeholder(replace(manifest, rank=1)).manifest.render()
    create_spare(of, of.spec, "image", 0, ("bad",)).manifest.render()
