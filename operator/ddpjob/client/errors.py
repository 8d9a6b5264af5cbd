"""What can go wrong for a user of the client, sorted by what the user can do about it.

Each text names the object, says what the server answered, and ends with the next step.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ddpjob_operator.api import names
from ddpjob_operator.core.untrusted import printable
from ddpjob_operator.transport import errors as transport
from ddpjob_operator.transport.resources import DDPJOBS, Resource

_DENIED = re.compile(r"cannot (\w+) resource \"([\w/.-]+)\"")
_NO_SUCH_PATH = ("page not found", "could not find the requested resource")


class ClientError(Exception):
    """The base class of all errors of the client."""


class UnreachableError(ClientError):
    """No API server can be reached: no usable kubeconfig, no connection, no answer, or an internal error of the server."""


class CredentialError(ClientError):
    """The server does not accept the credential, for example because a token has expired (401)."""


class ForbiddenError(ClientError):
    """The user may not do this (403)."""

    def __init__(self, message: str, *, verb: str, resource: str, namespace: str | None) -> None:
        """What was denied: the verb, the plural of the resource, and its namespace."""
        super().__init__(message)
        self.verb = verb
        self.resource = resource
        self.namespace = namespace


class NotFoundError(ClientError):
    """The job, or another object, does not exist."""


class NotInstalledError(ClientError):
    """The cluster does not serve the DDPJob type, or not the version that this client uses."""


class RejectedError(ClientError):
    """The server does not accept the object; its text names the fields."""


class ConflictError(ClientError):
    """An object of this name exists, or the object has changed in the meantime, or its state does not allow the action."""


class WaitTimeoutError(ClientError, TimeoutError):
    """The job did not reach the state in the given time."""


@contextmanager
def translated(verb: str, resource: Resource, namespace: str | None, name: str | None = None) -> Iterator[None]:
    """Raise what a request raises as a ClientError."""
    try:
        yield
    except transport.ApiError as error:
        raise client_error(error, verb, resource, namespace, name) from error


def client_error(
    error: transport.ApiError, verb: str, resource: Resource, namespace: str | None, name: str | None
) -> ClientError:
    """The client's error for one of the transport."""
    subject = _subject(resource, namespace, name)
    message = printable(error.message)
    if error.status == 401:
        return CredentialError(
            f"{subject}: the API server does not accept the credential ({message}); log in again, or choose another"
            " user with --context or KUBECONFIG"
        )
    if error.status == 403 and (denied := _DENIED.search(message)):
        verb, plural = denied.groups()
        scope = f"in namespace {namespace}" if namespace else "in all namespaces"
        check = f"kubectl auth can-i {verb} {plural} " + (f"-n {namespace}" if namespace else "-A")
        return ForbiddenError(
            f"{subject}: you may not {verb} {plural} {scope}; ask an administrator for this right (to check: {check})",
            verb=verb,
            resource=plural,
            namespace=namespace,
        )
    if isinstance(error, transport.NotFoundError):
        if resource == DDPJOBS and any(text in message for text in _NO_SUCH_PATH):
            return NotInstalledError(
                f"the API server does not know {names.KIND} in {names.API_VERSION}; install the operator's chart, or"
                " choose another cluster with --context"
            )
        if namespace and f'namespaces "{namespace}" not found' in message:
            return NotFoundError(
                f"{subject}: the namespace {namespace} does not exist; choose another with -n, or create it: kubectl create"
                f" namespace {namespace}"
            )
        where = f"-n {namespace}" if namespace else "-A"
        return NotFoundError(f"{subject} does not exist; to list those that do: ddpjob list {where}")
    if isinstance(error, transport.ConflictError):
        return ConflictError(f"{subject}: {message}; {_after_conflict(resource, namespace, name, message)}")
    if isinstance(error, (transport.UnavailableError, transport.ThrottledError)):
        return UnreachableError(
            f"{subject}: the API server cannot be reached or fails: {message}; try again, check it with kubectl cluster-info,"
            " or choose another cluster with --context or KUBECONFIG"
        )
    if "unknown field" in message:
        message += "; correct the name, or upgrade the cluster's CRD if the field is newer than it"
    return RejectedError(f"{subject}: the API server refuses to {verb} it: {message}")


def replaced(namespace: str, name: str, command: str) -> NotFoundError:
    """The error for a followed job in whose place there is another one by now; `command` is what shows that one."""
    return NotFoundError(
        f"{names.KIND} {namespace}/{name} was deleted, and another one of this name was created; to see that one:"
        f" ddpjob {command} {name} -n {namespace}"
    )


def _after_conflict(resource: Resource, namespace: str | None, name: str | None, message: str) -> str:
    if "already exists" not in message:
        return "read it again and repeat the change"
    command = "ddpjob delete" if resource == DDPJOBS else f"kubectl delete {resource.plural}"
    return f"delete it first ({command} {name} -n {namespace}), or choose another name"


def _subject(resource: Resource, namespace: str | None, name: str | None) -> str:
    kind = names.KIND if resource == DDPJOBS else resource.plural
    if name is None:
        return f"{kind.removesuffix('s')}s in " + (f"namespace {namespace}" if namespace else "all namespaces")
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
