"""Topology by pod affinity, for schedulers that know no topology of gangs: each pod wants to be near those that are placed.

The pods are placed one after the other, so the first one chooses the part of the cluster. With mode required, a part that is too
small for all is left only when the gang releases its nodes.
"""

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.scheduling import Topology, TopologyMode


def attract(pod: dict[str, Any], topology: Topology) -> None:
    """Add to a rendered pod that it should be, or has to be, where the other pods of its attempt are."""
    labels = {name: pod["metadata"]["labels"][name] for name in (names.LABEL_JOB_UID, names.LABEL_ATTEMPT)}
    term: dict[str, Any] = {"topologyKey": topology.key, "labelSelector": {"matchLabels": labels}}
    is_required = topology.mode is TopologyMode.REQUIRED
    kind = "required" if is_required else "preferred"
    add_term(pod, "podAffinity", kind, term if is_required else {"weight": 100, "podAffinityTerm": term})


def add_term(pod: dict[str, Any], towards: str, kind: str, term: Mapping[str, Any]) -> None:
    """Add a term (preferred or required) of `podAffinity` or `nodeAffinity` to those that the template has."""
    rule = f"{kind}DuringSchedulingIgnoredDuringExecution"
    affinity = pod["spec"].get("affinity") or {}
    known = (affinity.get(towards) or {}) if isinstance(affinity, Mapping) else None
    terms = (known.get(rule) or []) if isinstance(known, Mapping) else None
    if not isinstance(known, Mapping) or not isinstance(terms, list):
        return  # The template holds something else, and the API server refuses the pod with a message.
    pod["spec"]["affinity"] = {**affinity, towards: {**known, rule: [*terms, term]}}
