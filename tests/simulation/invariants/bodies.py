"""What invariants read of objects of the API server."""

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from simulation.api_server import Body

#: Of a pod: attempt, node rank, and how often the pod of that rank had been replaced before.
Place = tuple[int, int, int]


def is_operator(by: str) -> bool:
    """Whether an operator has made this change."""
    return by.startswith("operator")


def name_of(body: Body) -> str:
    """The name of an object."""
    return str(body["metadata"]["name"])


def newly_marked(old: Body, new: Body) -> bool:
    """Whether this change is the request to delete the object."""
    return "deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]


def is_true(status: Body, type_: str) -> bool:
    """Whether a job has this condition."""
    return any(c["type"] == type_ and c["status"] == "True" for c in status.get("conditions", ()))


def num_restarts(status: Body) -> int:
    """Restarts of a job for whatever cause."""
    return restarts(status, "counted") + restarts(status, "infrastructure")


def restarts(status: Body, kind: str) -> int:
    """Restarts of one kind, a key of `status.restarts`."""
    return int((status.get("restarts") or {}).get(kind, 0))


def place_of(pod: Body) -> Place:
    """Its place, by its labels."""
    labels = pod["metadata"]["labels"]
    replacement = labels.get(names.LABEL_REPLACEMENT, "0")
    return int(labels[names.LABEL_ATTEMPT]), int(labels[names.LABEL_RANK]), int(replacement)


def is_placeholder(pod: Body) -> bool:
    """Whether it only holds a place for a node that a job on fewer nodes lacks."""
    return names.LABEL_PLACEHOLDER in (pod["metadata"].get("labels") or {})


def num_nodes_of(pod: Body) -> int:
    """The number of nodes of its attempt, by its environment."""
    variables = pod["spec"]["containers"][0]["env"]
    return next(int(variable["value"]) for variable in variables if variable["name"] == contract.NNODES)


def replacement_of(status: Body, rank: int) -> int:
    """How often the pod of this rank has been replaced in the current attempt."""
    return next((pod["replacement"] for pod in status.get("replacedPods", ()) if pod["rank"] == rank), 0)
