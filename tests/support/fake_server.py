"""An API server in memory, with the verbs of the operator's client: for tests of what is done with its answers.

It keeps objects of any kind and namespace, and refuses or hangs as the test says. It knows no rules of Kubernetes: the
simulation's `ApiServer` has those, and the real one is in tests/cluster.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ddpjob_operator.core.model import Body
from ddpjob_operator.transport.client import Event, Page
from ddpjob_operator.transport.errors import ApiError, ConflictError, NotFoundError, UnavailableError
from ddpjob_operator.transport.resources import Resource
from simulation.api_server import carries, merged


class Request(NamedTuple):
    """What was asked of the server."""

    verb: str
    """get, create, delete, deletecollection, patch, list, watch or log."""
    plural: str
    namespace: str | None
    name: str = ""
    """Of the object; of a watch the version that it begins with."""


class FakeServer:
    """Objects by kind, namespace and name. Every answer takes a turn of the event loop."""

    def __init__(
        self,
        *,
        log: str | ApiError = "",
        refuse: Callable[[Request], ApiError | None] = lambda _: None,
        hang: Callable[[Request], bool] = lambda _: False,
    ) -> None:
        """`log` is what any pod has printed, `refuse` gives the error of a request, `hang` says which is never answered."""
        self.log, self.refuse, self.hang = log, refuse, hang
        self.lines: Iterable[str] = ()
        """The log, for those who read it line by line."""
        self.answer_seconds = 0.0
        self.may_answer = asyncio.Event()
        """No request is answered while it is not set."""
        self.may_answer.set()
        self.loses_answers = False
        """Whether changes are made, and the client does not learn of it."""
        self.drops: frozenset[str] = frozenset()
        """Fields that the schema does not have, wherever they are in a status."""
        self.watches: dict[str, Iterator[Iterable[Event | ApiError]]] = {}
        """By kind, what each watch shows, with an error if it breaks; those after the last show nothing."""
        self.version = 0
        self.requests: list[Request] = []
        self.patches: list[Body] = []
        self.tails: list[int] = []
        """How many lines each read of a log has asked for."""
        self.containers: list[str] = []
        """Of which container each read of a log was."""
        self.num_open = self.most_open = 0
        self._objects: dict[tuple[str, str | None, str], Body] = {}

    # --- What tests do and look at ------------------------------------------------------------------------------------

    def put(self, resource: Resource, body: Body, namespace: str | None = "ns", **metadata: Any) -> Body:
        """Keep an object, in a new version, in place of the one of its name."""
        self.version += 1
        given = {"namespace": namespace, **body["metadata"], "resourceVersion": str(self.version), **metadata}
        kept = {**body, "metadata": given}
        self._objects[resource.plural, given["namespace"], given["name"]] = kept
        return kept

    def find(self, resource: Resource, name: str, namespace: str | None = "ns") -> Any:
        """An object that the server has."""
        return self._objects[resource.plural, namespace, name]

    def remove(self, resource: Resource, name: str, namespace: str | None = "ns") -> None:
        """The object is gone."""
        self._objects.pop((resource.plural, namespace, name), None)

    def names(self, resource: Resource, namespace: str | None = None) -> list[str]:
        """The names of the objects of one kind, in all namespaces or in one, in the order in which they came."""
        return [name for plural, of, name in self._objects if plural == resource.plural and namespace in (None, of)]

    def all(self, resource: Resource) -> list[Body]:
        """The objects of one kind in all namespaces, in the order in which they came."""
        return [body for (plural, _, _), body in self._objects.items() if plural == resource.plural]

    def num(self, verb: str, name: str | None = None) -> int:
        """How many requests of this verb there were, for any or for this name."""
        return sum(request.verb == verb and name in (None, request.name) for request in self.requests)

    # --- The verbs of the client --------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Body:
        """One object."""
        await self._answer(Request("get", resource.plural, namespace, name))
        return self._known(resource, namespace, name)

    async def create(self, resource: Resource, namespace: str | None, body: Body) -> Body:
        """A new object, with a uid that follows from its name."""
        name = body["metadata"]["name"]
        await self._answer(Request("create", resource.plural, namespace, name))
        if (resource.plural, namespace, name) in self._objects:
            raise ConflictError(f"create {resource.plural}", f'{resource.plural} "{name}" already exists', status=409)
        return self.put(resource, body, namespace, uid=f"uid-of-{name}")

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        """The object goes at once."""
        await self._answer(Request("delete", resource.plural, namespace, name))
        self.remove(resource, name, namespace)

    async def delete_collection(self, resource: Resource, namespace: str, labels: str) -> None:
        """All objects with these labels go at once."""
        await self._answer(Request("deletecollection", resource.plural, namespace))
        for body in [body for body in self.all(resource) if carries(body, labels)]:
            self.remove(resource, body["metadata"]["name"], namespace)

    async def merge_patch(self, resource: Resource, namespace: str, name: str, patch: Body, **_: Any) -> Body:
        """Change everything but the metadata, if the object still has the version that the patch names."""
        self.patches.append(patch)
        await self._answer(Request("patch", resource.plural, namespace, name))
        old = self._known(resource, namespace, name)
        version = old["metadata"]["resourceVersion"]
        if patch.get("metadata", {}).get("resourceVersion", version) != version:
            raise ConflictError(f"patch {resource.plural}", "the object has been modified", status=409)
        parts = {part: merged(old.get(part, {}), patch[part]) for part in patch if part != "metadata"}
        new = self.put(resource, {**old, **_without(parts, self.drops)}, namespace)
        if self.loses_answers:
            raise UnavailableError(f"patch {resource.plural}", "the connection ended")
        return new

    async def pages(
        self, resource: Resource, namespace: str | None, labels: str = "", *, fields: str = ""
    ) -> AsyncIterator[Page]:
        """One page of the objects that have these labels and fields, sorted by name."""
        await self._answer(Request("list", resource.plural, namespace))
        wanted = dict(term.split("=") for term in fields.split(",") if term)
        items = [
            body
            for (plural, of, _), body in sorted(self._objects.items(), key=lambda item: item[0][2])
            if plural == resource.plural and namespace in (None, of) and carries(body, labels)
            if all(_field(body, path) == value for path, value in wanted.items())
        ]
        yield Page(items=items, resource_version=str(self.version))

    everything = pages

    async def watch(
        self, resource: Resource, namespace: str | None, _labels: str = "", version: str = "", **_: Any
    ) -> AsyncGenerator[Event, None]:
        """What the test has planned."""
        await self._answer(Request("watch", resource.plural, namespace, version))
        for step in next(self.watches.get(resource.plural, iter(())), ()):
            if isinstance(step, ApiError):
                raise step
            yield step
        await asyncio.Event().wait()

    async def pod_log(
        self, namespace: str, pod: str, *, container: str, tail_lines: int = 1000, limit_bytes: int = 2**20, **_: Any
    ) -> str:
        """The last lines of the log, whose end is cut off where they are too long."""
        self.tails.append(tail_lines)
        self.containers.append(container)
        await self._answer(Request("log", "pods", namespace, pod))
        if isinstance(self.log, ApiError):
            raise self.log
        return "".join(self.log.splitlines(keepends=True)[-tail_lines:])[:limit_bytes]

    async def pod_log_lines(self, namespace: str, pod: str, *, follow: bool, **_: Any) -> AsyncGenerator[str, None]:
        """The lines, each with a time of its own; one that is followed does not end."""
        await self._answer(Request("log", "pods", namespace, pod))
        for number, text in enumerate(self.lines):
            yield f"2026-01-01T00:00:{number // 10**6:02d}.{number % 10**6:06d}Z {text}"
            await asyncio.sleep(0)
        if follow:
            await asyncio.Event().wait()

    async def _answer(self, request: Request) -> None:
        self.requests.append(request)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            await asyncio.sleep(self.answer_seconds)
            await self.may_answer.wait()
            if self.hang(request):
                await asyncio.Event().wait()
            if error := self.refuse(request):
                raise error
        finally:
            self.num_open -= 1

    def _known(self, resource: Resource, namespace: str | None, name: str) -> Body:
        try:
            return self._objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFoundError(f"get {name}", "not found", status=404) from None


def _field(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name, {})
    return body


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value
