"""Quantities of resources, such as `500m` and `16Gi`: sums for a gang."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ddpjob_operator.core.model import Body

BINARY = {unit: Decimal(2 ** (10 * power)) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)}
_UNITS = {
    **BINARY,
    "m": Decimal("0.001"),
    **{unit: Decimal(10 ** (3 * power)) for power, unit in enumerate("kMGT", start=1)},
}


def number(quantity: Any) -> Decimal:
    """A quantity of Kubernetes; 0 for one that has another form."""
    text = str(quantity)
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    digits = text.removesuffix(unit)
    scale = _UNITS.get(unit, Decimal(1))
    return Decimal(digits) * scale if re.fullmatch(r"\d{1,18}(\.\d{1,9})?", digits) else Decimal(0)


def requests_of_gang(pod: Body, num_pods: int) -> dict[str, str]:
    """What the containers of so many equal pods request, by resource; without those of which none requests any.

    A pod needs the sum over its containers, or what an init container needs if that is more, as in Kubernetes' "Resource
    sharing within containers". Sidecars, which are init containers that restart always, run next to the others.
    """
    spec = pod["spec"]
    initial = spec.get("initContainers") or ()
    sidecars = [container for container in initial if container.get("restartPolicy") == "Always"]
    total: dict[str, Decimal] = {}
    for container in (*spec["containers"], *sidecars):
        for resource, quantity in _requests(container).items():
            total[resource] = total.get(resource, Decimal(0)) + quantity
    for container in initial:
        for resource, quantity in _requests(container).items():
            total[resource] = max(total.get(resource, Decimal(0)), quantity)
    return {resource: f"{(one * num_pods).normalize():f}" for resource, one in sorted(total.items()) if one}


def _requests(container: Body) -> Mapping[str, Decimal]:
    resources = container.get("resources")
    # A limit without a request is the request. What is none of these the API server refuses, with the pod.
    parts = [resources.get(part) for part in ("limits", "requests")] if isinstance(resources, Mapping) else []
    requested = {name: quantity for part in parts if isinstance(part, Mapping) for name, quantity in part.items()}
    return {resource: number(quantity) for resource, quantity in requested.items()}
