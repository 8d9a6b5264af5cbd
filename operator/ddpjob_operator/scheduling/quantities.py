"""Quantities of resources, such as `500m` and `16Gi`: sums for a gang.

A template may hold anything in a place of which the operator knows nothing. What is no quantity counts as nothing here: the API
server refuses such a pod with a message.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ddpjob_operator.core.model import Body

BINARY = {unit: Decimal(2 ** (10 * power)) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_UNITS = {
    "": Decimal(1),
    **BINARY,
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("num", start=-3)},
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", start=1)},
}
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{0,9})?|\.\d{1,9})(?:[eE]([+-]?\d{1,2})|([A-Za-z]{0,2}))")
_NOTHING = Decimal(0)


def number(quantity: Any) -> Decimal:
    """A quantity of Kubernetes; 0 for one that has another form."""
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        return _NOTHING
    digits, exponent, unit = found.groups()
    return Decimal(digits) * (Decimal(10) ** int(exponent) if exponent else _UNITS.get(unit, _NOTHING))


def requests_of_gang(pod: Body, num_pods: int) -> dict[str, str]:
    """What so many equal pods request, by resource; without those of which none requests any.

    A pod needs the sum over its containers, or what an init container needs if that is more, as in Kubernetes' "Resource
    sharing within containers". Sidecars, which are init containers that restart always, run next to all later ones.
    """
    spec = pod["spec"]
    running: Mapping[str, Decimal] = {}
    largest: Mapping[str, Decimal] = {}
    for container in _mappings(spec.get("initContainers")):
        started = _sum(running, _requests(container))
        largest = _largest(started, largest)
        running = started if container.get("restartPolicy") == "Always" else running
    for container in _mappings(spec["containers"]):
        running = _sum(running, _requests(container))
    total = _sum(_largest(running, largest), _numbers(spec.get("overhead")))
    return {resource: f"{(one * num_pods).normalize():f}" for resource, one in sorted(total.items()) if one}


def _requests(container: Mapping[str, Any]) -> Mapping[str, Decimal]:
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    # A limit without a request is the request.
    return {**_numbers(resources.get("limits")), **_numbers(resources.get("requests"))}


def _numbers(quantities: object) -> Mapping[str, Decimal]:
    return {name: number(value) for name, value in quantities.items()} if isinstance(quantities, Mapping) else {}


def _mappings(items: object) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in items if isinstance(item, Mapping)) if isinstance(items, list) else ()


def _sum(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> Mapping[str, Decimal]:
    return {resource: one.get(resource, _NOTHING) + other.get(resource, _NOTHING) for resource in {**one, **other}}


def _largest(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> Mapping[str, Decimal]:
    return {resource: max(one.get(resource, _NOTHING), other.get(resource, _NOTHING)) for resource in {**one, **other}}
