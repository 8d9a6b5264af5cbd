"""Each answer of the server becomes the error by which the caller knows what to do."""

import pytest

from ddpjob.client import errors
from ddpjob_operator.transport.errors import ApiError, error_of
from ddpjob_operator.transport.resources import DDPJOBS, PODS, Resource

DENIED = 'pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "team"'


def answer(status: int, message: str) -> ApiError:
    return error_of("get /x", status, message.encode(), None)


@pytest.mark.parametrize(
    ("error", "resource", "kind", "text"),
    [
        (answer(401, "Unauthorized"), DDPJOBS, errors.CredentialError, "DDPJob team/j: .*log in again"),
        (answer(403, DENIED), PODS, errors.ForbiddenError, "pods team/j: you may not list pods in namespace team"),
        (answer(403, "exceeded quota"), DDPJOBS, errors.RejectedError, "refuses to get it: exceeded quota"),
        (answer(404, "404 page not found"), DDPJOBS, errors.NotInstalledError, "does not know DDPJob in ddpjob.dev/"),
        (answer(404, 'x "j" not found'), DDPJOBS, errors.NotFoundError, "DDPJob team/j does not exist.*-n team"),
        (
            answer(404, 'namespaces "team" not found'),
            DDPJOBS,
            errors.NotFoundError,
            "DDPJob team/j: the namespace team does not exist; .*kubectl create namespace team",
        ),
        (
            answer(409, "already exists"),
            DDPJOBS,
            errors.ConflictError,
            r"j: already exists; delete it first \(ddpjob delete j -n team\)",
        ),
        (answer(409, "was modified"), DDPJOBS, errors.ConflictError, "was modified; read it again"),
        (answer(422, "spec.nodes: invalid"), DDPJOBS, errors.RejectedError, "spec.nodes: invalid"),
        (answer(400, 'unknown field "spec.x"'), DDPJOBS, errors.RejectedError, "upgrade the cluster's CRD"),
        (answer(503, "no endpoints"), DDPJOBS, errors.UnreachableError, "cannot be reached or fails: no endpoints"),
        (answer(429, "too many requests"), DDPJOBS, errors.UnreachableError, "fails: too many requests; try again"),
        (answer(422, "\x1b[2Jcleared"), DDPJOBS, errors.RejectedError, "it: cleared"),
    ],
)
def test_the_error_of_an_answer(error: ApiError, resource: Resource, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text), errors.translated("get", resource, "team", "j"):
        raise error


@pytest.mark.parametrize(
    ("namespace", "text"),
    [("team", "^DDPJobs in namespace team: the API server cannot"), (None, "^DDPJobs in all namespaces: the API")],
)
def test_the_error_of_a_list_names_where(namespace: str | None, text: str) -> None:
    with pytest.raises(errors.UnreachableError, match=text), errors.translated("list", DDPJOBS, namespace):
        raise answer(503, "no endpoints")


def test_a_missing_right_names_verb_resource_and_namespace() -> None:
    with pytest.raises(errors.ForbiddenError) as raised, errors.translated("get", PODS, "team", "j"):
        raise answer(403, DENIED)
    assert (raised.value.verb, raised.value.resource, raised.value.namespace) == ("list", "pods", "team")
