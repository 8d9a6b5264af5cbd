"""Each command, on objects in which every field that the API server lets through holds what a terminal obeys."""

import asyncio
import copy
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from enum import EnumType
from pathlib import Path
from typing import Any

import pytest
import yaml

import testbed
from ddpjob_cli.__main__ import main
from ddpjob_cli.application import COMMANDS, load_command
from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.resources import DDPJOBS, EVENTS, PODS, of_job
from support import REPOSITORY
from support.operator_cluster import Namespace, eventually

#: A title, an empty screen, a colour in C1, another direction, no width, a tag, a line of another system, a line of its own.
HOSTILE = "\x1b]0;T\x07\x1b[2J\x1b[38;5;201m\x9b31m\u202e\u200b\U000e0041\x85\nFORGED"
#: What the commands need besides their arguments so that they end by themselves, in their order: some end the job.
ENDS = {"run": ["--dry-run=server"], "wait": ["--timeout", "1s"], "plot": ["--save", "x.csv"], "exec": []}
SGR = re.compile(r"\x1b\[[0-9;]*m")
LAST = ("suspend", "resume", "restart", "delete")


def is_visible(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def instance(schema: dict[str, Any]) -> Any:
    """A value of this schema that has every field."""
    match schema.get("type"):
        case "object":
            named = {name: instance(inner) for name, inner in schema.get("properties", {}).items()}
            free = schema.get("additionalProperties")
            return named or ({"a": instance(free)} if isinstance(free, dict) else {})
        case "array":
            return [instance(schema["items"])]
        case "string":
            return "2026-01-01T00:00:00Z" if schema.get("format") == "date-time" else schema.get("enum", ["x"])[0]
        case "boolean":
            return False
        case _:
            return schema.get("minimum", 1)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings."""
    if isinstance(value, str):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, (*path, key))


async def poisoned(body: Any, accepts: Callable[[Any], Awaitable[object]]) -> tuple[Any, int]:
    """The body with HOSTILE in each string that the server accepts it in, and their number."""
    number = 0
    for *parents, last in list(leaves(body)):
        tried = copy.deepcopy(body)
        place = tried
        for step in parents:
            place = place[step]
        place[last] += HOSTILE
        try:
            await accepts(tried)
        except ApiError:
            continue
        body, number = tried, number + 1
    return body, number


async def hostile_job(client: Client, namespace: str) -> dict[str, Any]:
    """A job that another controller runs, with a status of every field."""
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": namespace, "annotations": {"a": ""}, "labels": {"b": ""}},
        "spec": {
            "managedBy": "example.org/x",
            "command": ["python", "-c"],
            "image": "x",
            "env": [{"name": "A", "value": ""}],
            "scheduling": {"queueName": "q"},
            "template": {"metadata": {"annotations": {"a": ""}}, "spec": {"nodeName": "", "volumes": [{"name": ""}]}},
        },
    }
    job, number = await poisoned(job, lambda tried: client.create(DDPJOBS, namespace, tried, dry_run=True))
    assert number >= 4
    created = await client.create(DDPJOBS, namespace, job)
    crd = yaml.safe_load((REPOSITORY / "manifests/crd/ddpjob.yaml").read_text())
    crd_status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    status = {**instance(crd_status), "observedGeneration": 1000}

    async def accepts(tried: Any) -> object:
        return await client.merge_patch(DDPJOBS, namespace, "j", {"status": tried}, subresource="status")

    await accepts(status)
    status, number = await poisoned(status, accepts)
    assert number >= 20, "almost each string of the status is free text"
    suspended = {**instance(crd_status["properties"]["conditions"]["items"]), "type": "Suspended", "status": "True"}
    await accepts({**status, "conditions": [suspended, *status["conditions"]]})  # `ddpjob restart` waits for it
    return dict(created)


async def hostile_pod(client: Client, namespace: Namespace, job: dict[str, Any], cluster: testbed.ControlPlane) -> None:
    labels = dict(part.split("=") for part in of_job(job["metadata"]["uid"], 1).split(","))
    body = {
        "metadata": {"name": "j-1-0", "labels": {**labels, names.LABEL_RANK: "0"}, "annotations": {"a": HOSTILE}},
        "spec": {"containers": [{"name": names.MAIN_CONTAINER, "image": "x", "args": [HOSTILE]}]},
    }
    await client.create(PODS, namespace.name, body)
    await namespace.has_pods("the pod to run", lambda pods: pods["j-1-0"].get("status", {}).get("phase") == "Running")
    progress = 'ddpjob-progress {"step": 1, "loss": 1.0}\nddpjob-progress {"step": 2, "loss": 0.5}'
    cluster.append_kwok_log(namespace.name, "j-1-0", HOSTILE.partition("\n")[0] + "line\n" + progress)
    ended = {"exitCode": 1, "reason": "x", "message": "x", "finishedAt": "2026-01-01T00:00:00Z"}
    main = {"name": names.MAIN_CONTAINER, "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    status = {"reason": "x", "message": "x", "containerStatuses": [{**main, "state": {"terminated": ended}}]}

    async def accepts(tried: Any) -> object:
        return await client.merge_patch(PODS, namespace.name, "j-1-0", {"status": tried}, subresource="status")

    _, number = await poisoned(status, accepts)
    assert number >= 4


async def hostile_events(client: Client, namespace: str, job: dict[str, Any]) -> None:
    about = {"apiVersion": names.API_VERSION, "kind": names.KIND, "namespace": namespace, "name": "j"}
    event = {
        "metadata": {"name": "evil", "namespace": namespace},
        "involvedObject": {**about, "uid": job["metadata"]["uid"]},
        "type": "Warning",
        "reason": "x",
        "message": "x",
        "source": {"component": "x"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    # Of another kind it would not belong to the job; the kind is tried in the event of a pod below.
    event, number = await poisoned(event, lambda tried: client.create(EVENTS, namespace, tried, dry_run=True))
    assert number >= 4
    event["involvedObject"] = {**event["involvedObject"], **about, "uid": job["metadata"]["uid"]}
    await client.create(EVENTS, namespace, event)


def invocations(file: Path) -> Iterator[list[str]]:
    """Each command of the table with arguments for its parameters, once for each format that it prints."""
    for name in sorted(COMMANDS, key=lambda name: LAST.index(name) if name in LAST else -1):
        command = load_command(name)
        given = {"file": [str(file)], "files": [str(file)], "job": ["j"], "program": ["--", "true"]}
        words = [word for param in command.params for word in given.get(param.name, [])]
        kind = next((p.type_descriptor.annotation for p in command.params if p.name == "output"), None)
        for output in ("", *(kind if isinstance(kind, EnumType) else ())):
            yield [name, *ENDS.get(name, []), *(["-o", output] if output else []), *words]
    yield ["list", "-A"]
    yield ["logs", "j", "--failed"]
    yield ["run", str(file), "--dry-run=client"]


def hostile_file(folder: Path) -> Path:
    file = folder / f"evil{HOSTILE.partition(chr(10))[0]}.yaml"
    body = {"apiVersion": "v1", "kind": f"X{HOSTILE}", "metadata": {"name": HOSTILE}, "spec": {HOSTILE: HOSTILE}}
    file.write_text(yaml.safe_dump(body), encoding="utf-8")
    return file


@pytest.mark.parametrize("terminal", ["", "1"])
async def test_no_command_prints_what_a_terminal_obeys(
    client: Client,
    cluster: testbed.ControlPlane,
    namespace: Namespace,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],  # also of what does not go through sys.stdout
    monkeypatch: pytest.MonkeyPatch,
    terminal: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", terminal)
    job = await hostile_job(client, namespace.name)
    await hostile_pod(client, namespace, job, cluster)
    await hostile_events(client, namespace.name, job)
    await eventually("the pod to be there", namespace.pods)
    shown: set[str] = set()
    faults: list[tuple[object, ...]] = []
    for arguments in invocations(hostile_file(tmp_path)):
        where = [] if arguments[0] in ("init", "validate", "render", "convert") else ["-n", namespace.name]
        where += ["--kubeconfig", str(cluster.kubeconfig)] if where else []
        capfd.readouterr()
        await asyncio.to_thread(main, [*arguments[:1], *where, *arguments[1:]])
        for text in capfd.readouterr():
            own = SGR.sub("", text) if terminal and "\x1b[38;5;201m" not in text else text
            if strange := sorted({c for c in own if not is_visible(c)}):
                faults.append((arguments, "prints", strange))
            if "-o" not in arguments and any(line.startswith("FORGED") for line in own.splitlines()):
                faults.append((arguments, "begins a line with the text of somebody else", own))
            shown.add(arguments[0])
    assert not faults
    assert shown == set(COMMANDS)


async def test_a_job_nested_deeper_than_python_reads_is_listed_and_deleted(
    cluster: testbed.ControlPlane, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server stores 10,000 levels; one such job would keep an administrator from listing all others."""
    await namespace.apply("next", managedBy="example.org/x")
    deep = "[" * 1500 + "1" + "]" * 1500
    body = f'{{"apiVersion":"{names.API_VERSION}","kind":"{names.KIND}","metadata":{{"name":"deep"}},"spec":{{"command":["x"],'
    body += f'"managedBy":"example.org/x","template":{{"spec":{{"x":{deep}}}}}}}}}'
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace.name}/{names.PLURAL}"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=body)
    where = ["--kubeconfig", str(cluster.kubeconfig)]
    for arguments in (
        ["list", "-A"],
        ["list", "-A", "-o", "yaml"],
        ["status", "deep", "-o", "json"],
        ["explain", "deep"],
    ):
        there = [] if "-A" in arguments else ["-n", namespace.name]
        assert await asyncio.to_thread(main, [*arguments, *where, *there]) == 0
    assert "next" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["delete", "deep", *where, "-n", namespace.name]) == 0
    await namespace.loses(DDPJOBS, "deep")
