"""The public client against a real API server and the real operator process."""

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64decode
from contextlib import aclosing
from pathlib import Path

import pytest

import testbed
from ddpjob.client import AsyncClient, ForbiddenError, NotFoundError
from ddpjob_operator.transport.errors import NotFoundError as NoSuchObjectError
from ddpjob_operator.transport.errors import UnavailableError
from ddpjob_operator.transport.execution import Execution
from ddpjob_operator.transport.resources import CONFIG_MAPS
from support import REPOSITORY
from support.operator_cluster import SECONDS, Namespace, eventually, gets_the_right
from testbed.faultproxy import FaultProxy
from testbed.faults import Answer, CutStream

pytestmark = pytest.mark.usefixtures("operator_process")


def train(epochs: int, rate: float = 0.1) -> None:
    import os

    print(epochs, rate, os.environ["RANK"])


JOB = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "spec": {"command": ["x"], "nodes": 2}}


async def test_a_job_is_submitted_waited_for_and_deleted(sdk: AsyncClient, namespace: Namespace) -> None:
    submitted = await sdk.submit(JOB, name="j")
    assert (submitted.namespace, submitted.phase) == (namespace.name, "Pending")
    assert (await sdk.wait("j", until="running", timeout=SECONDS)).status.ready == "2/2"
    assert [(pod.rank, pod.state) for pod in await sdk.pods(submitted)] == [(0, "Running"), (1, "Running")]
    await namespace.succeeds("j")
    done = await sdk.wait("j", timeout=SECONDS)
    assert done.succeeded
    assert [job.name for job in await sdk.list()] == ["j"]
    await sdk.delete("j")
    with pytest.raises(NotFoundError, match="j does not exist"):
        await sdk.get("j")


async def test_logs_are_merged_and_follow_into_the_next_attempt(
    sdk: AsyncClient, namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    await sdk.submit(JOB, name="j")
    await sdk.wait("j", until="running", timeout=SECONDS)
    cluster.append_kwok_log(namespace.name, "j-1-0", "from zero\n\x1b[31mred\x1b[0m")
    cluster.append_kwok_log(namespace.name, "j-1-1", "from one")
    now = [line async for line in sdk.logs("j")]
    assert [(line.rank, line.text) for line in now] == [(0, "from zero"), (0, "red"), (1, "from one")]
    assert [line.text async for line in sdk.logs("j", ranks={1})] == ["from one"]

    notes: list[str] = []
    followed: list[tuple[int, int, str]] = []

    async def follow() -> None:
        async for line in sdk.logs("j", follow=True, on_note=notes.append):
            followed.append((line.attempt, line.rank, line.text))  # noqa: PERF401  # a comprehension shows nothing until its end

    following = asyncio.create_task(follow())

    async def has(line: tuple[int, int, str]) -> bool:
        assert not following.done() or following.result() is None
        return line in followed

    await eventually("the old lines", lambda: has((1, 1, "from one")))
    cluster.append_kwok_log(namespace.name, "j-1-0", "later")
    await eventually("a new line", lambda: has((1, 0, "later")))
    await namespace.ends("j-1-1", 3, "ValueError: boom")
    await namespace.reaches("j", "Running", attempt=2)
    cluster.append_kwok_log(namespace.name, "j-2-0", "second attempt")
    await eventually("a line of the next attempt", lambda: has((2, 0, "second attempt")))
    await namespace.succeeds("j", attempt=2)
    await asyncio.wait_for(following, SECONDS)
    assert len(followed) == len(set(followed)), "no line is read twice"
    assert any("attempt 1 has ended, attempt 2 starts" in note for note in notes)
    gone: list[str] = []
    kept = [line.text async for line in sdk.logs("j", attempt="all", on_note=gone.append)]
    assert "second attempt" in kept


async def test_a_function_and_files_are_sent_in_a_config_map_that_the_job_owns(
    sdk: AsyncClient, namespace: Namespace
) -> None:
    full = {"package/data.bin": b"\xff" * (1024 * 1024 - 4096), "rates.txt": b"0.1"}
    job = await sdk.submit(train, name="f", nodes=2, args={"epochs": 3}, files=full)
    await sdk.wait("f", until="running", timeout=SECONDS)
    pod = (await namespace.pods())["f-1-0"]["spec"]
    volume = next(volume["configMap"] for volume in pod["volumes"] if volume["name"] == "ddpjob-files")
    config_map = await namespace.find(CONFIG_MAPS, volume["name"])
    assert config_map is not None
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert config_map["immutable"] is True
    contents = {**config_map["data"], **{key: b64decode(text) for key, text in config_map["binaryData"].items()}}
    files = {item["path"]: contents[item["key"]] for item in volume["items"]}
    assert "def train(epochs" in files["ddpjob_function.py"]
    assert files["package/data.bin"] == full["package/data.bin"]
    container = pod["containers"][0]
    assert container["command"] == ["python", "-u", "ddpjob_function.py"]
    assert container["workingDir"] in [mount["mountPath"] for mount in container["volumeMounts"]]


async def test_the_example_of_a_notebook_runs(
    cluster: testbed.ControlPlane, sdk: AsyncClient, namespace: Namespace, tmp_path: Path
) -> None:
    config = cluster.kubectl.json("config", "view", "--raw", "--flatten")
    config["contexts"][0]["context"]["namespace"] = namespace.name
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    notebook = await asyncio.create_subprocess_exec(
        *(sys.executable, REPOSITORY / "operator/examples/notebook.py"),
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": f"{REPOSITORY}/operator:{REPOSITORY}/trainer"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    (job,) = await eventually("the notebook's job", sdk.list)
    await sdk.wait(job.name, until="running", timeout=SECONDS)
    for rank in range(2):
        cluster.append_kwok_log(namespace.name, f"{job.name}-1-{rank}", f"rank {rank} of 2: epoch 0, rate 0.1")
        await namespace.ends(f"{job.name}-1-{rank}", 0)
    output, _ = await asyncio.wait_for(notebook.communicate(), SECONDS)
    shown = output.decode()
    assert notebook.returncode == 0, shown
    for text in (
        f"namespace {namespace.name} on https",
        "[1] rank 1 of 2: epoch 0",
        f"{job.name} succeeded in attempt 1",
    ):
        assert text in shown, shown
    assert not [left for left in await sdk.list() if not left.deleting]


async def test_a_job_without_the_right_to_create_its_config_map_is_not_left_behind(
    cluster: testbed.ControlPlane, sdk: AsyncClient, namespace: Namespace, tmp_path: Path
) -> None:
    cluster.kubectl("create", "role", "jobs", "--verb=*", "--resource=ddpjobs.ddpjob.dev", "-n", namespace.name)
    account = f"--serviceaccount={namespace.name}:default"
    cluster.kubectl("create", "rolebinding", "jobs", "--role=jobs", account, "-n", namespace.name)
    await gets_the_right(cluster, f"{namespace.name}:default", "create", "ddpjobs.ddpjob.dev")
    token = cluster.kubectl("create", "token", "default", "-n", namespace.name).strip()
    async with AsyncClient(kubeconfig=kubeconfig_with(cluster, tmp_path, token), namespace=namespace.name) as user:
        with pytest.raises(ForbiddenError, match="you may not create configmaps in namespace"):
            await user.submit(JOB, name="j", files={"train.py": b""})
    assert not [job for job in await sdk.list() if not job.deleting]


async def test_a_command_runs_in_a_container(sdk: AsyncClient, namespace: Namespace) -> None:
    await sdk.submit({**JOB, "spec": {"command": ["x"]}}, name="j")
    await sdk.wait("j", until="running", timeout=SECONDS)

    async def executed(*command: str, pod: str = "j-1-0", seconds: float = SECONDS) -> Execution:
        return await sdk.api.execute(namespace.name, pod, command, container="trainer", timeout_seconds=seconds)

    words = ("sh", "-c", 'echo "$1"; echo $DDPJOB_UID >&2', "sh", "a  b;$HOME")
    assert await executed(*words) == Execution(exit_code=0, output="a  b;$HOME\n", errors="kwok\n")
    assert (await executed("seq", "200000")).output.splitlines()[-1] == "200000"
    assert "absent-program" in (await executed("absent-program")).errors
    with pytest.raises(UnavailableError, match=r"no end after 0.2 s"):
        await executed("sleep", "5", seconds=0.2)
    with pytest.raises(NoSuchObjectError):
        await executed("true", pod="absent")


def kubeconfig_with(cluster: testbed.ControlPlane, folder: Path, token: str) -> str:
    """A kubeconfig that logs in by a token."""
    config = cluster.kubectl.json("config", "view", "--raw", "--flatten")
    config["users"][0]["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return str(file)


async def test_following_outlives_an_api_server_that_is_away(
    cluster: testbed.ControlPlane, sdk: AsyncClient, namespace: Namespace
) -> None:
    await sdk.submit(JOB, name="j")
    with FaultProxy(cluster) as proxy:
        cut = proxy.inject(CutStream(), verbs=("watch",), target="/ddpjobs", times=1)
        away = proxy.inject(Answer(503), verbs=("read",), target="/ddpjobs/j", skip=1, times=4)
        async with (
            AsyncClient(kubeconfig=str(proxy.kubeconfig), namespace=namespace.name) as client,
            aclosing(client.watch("j")) as jobs,
        ):
            await anext(jobs)
            await namespace.reaches("j", "Running")
            for rank in range(2):
                await namespace.ends(f"j-1-{rank}", 0)
            async for job in jobs:
                if job.finished:
                    break
    assert (job.succeeded, cut.num_struck, away.num_struck) == (True, 1, 4)
