"""The `ddpjob` command against a real API server and the real operator process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import testbed
from ddpjob_cli.__main__ import main
from ddpjob_operator.transport.resources import CONFIG_MAPS, DDPJOBS
from support import REPOSITORY
from support.operator_cluster import Namespace, eventually
from support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("operator_process")

SECONDS = 240


def _heed_ctrl_c() -> None:
    """A shell without job control has its background processes, and so their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Commands:
    """Runs `ddpjob` with the kubeconfig of the cluster, in the namespace of the test."""

    def __init__(self, cluster: testbed.ControlPlane, namespace: str, capture: pytest.CaptureFixture[str]) -> None:
        self._cluster = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
        self._capture = capture

    @contextmanager
    def started(self, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
        """A command as a process of its own, which does not outlive the context."""
        path = f"{REPOSITORY / 'operator'}{os.pathsep}{REPOSITORY / 'trainer'}"
        command = [sys.executable, "-m", "ddpjob_cli", *self._cluster, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=pipe,
            stderr=pipe,
            text=True,
            preexec_fn=_heed_ctrl_c,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def on_a_terminal(self, *arguments: str, columns: int = 100, rows: int = 40) -> Terminal:
        """A command on a terminal, which does not outlive the context."""
        path = f"{REPOSITORY / 'operator'}{os.pathsep}{REPOSITORY / 'trainer'}"
        words = (*self._cluster, *arguments)
        return Terminal(*words, folder=REPOSITORY, columns=columns, rows=rows, environ={"PYTHONPATH": path})

    async def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Run a command in this process; gives standard output and standard error."""
        self._capture.readouterr()
        result = await asyncio.wait_for(asyncio.to_thread(main, [*self._cluster, *arguments]), SECONDS)
        shown = self._capture.readouterr()
        assert result == code, shown
        return shown.out, shown.err


async def runs(namespace: Namespace) -> None:
    """Wait until the job that a command submits exists and runs."""
    await eventually("the job to exist", lambda: namespace.find(DDPJOBS, "j"))
    await namespace.reaches("j", "Running")


@pytest.fixture
def ddpjob(cluster: testbed.ControlPlane, namespace: Namespace, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(cluster, namespace.name, capsys)


def job_file(folder: Path, **spec: object) -> str:
    body = {
        "apiVersion": "ddpjob.dev/v1beta1",
        "kind": "DDPJob",
        "metadata": {"name": "j"},
        "spec": {"command": ["x"], "nodes": 2, **spec},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(body))
    return str(file)


async def test_run_follows_a_job_to_its_end(
    ddpjob: Commands, namespace: Namespace, cluster: testbed.ControlPlane, tmp_path: Path
) -> None:
    with ddpjob.started("run", job_file(tmp_path), "--set", "nodes=1", "--env", "A=b") as process:
        await runs(namespace)
        environment = (await namespace.pods())["j-1-0"]["spec"]["containers"][0]["env"]
        assert {"name": "A", "value": "b"} in environment
        cluster.append_kwok_log(namespace.name, "j-1-0", "hello\nddpjob-progress {}")
        await namespace.ends("j-1-0", 0)
        output, notes = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    assert process.returncode == 0, notes
    assert output == "[rank 0] hello\n"
    assert f"{namespace.name}/j succeeded after" in notes.splitlines()[-1]
    _, notes = await ddpjob("run", str(tmp_path / "job.yaml"), code=2)
    assert (
        f"exists and has succeeded, so it does not run again; delete it (ddpjob delete j -n {namespace.name})" in notes
    )


async def test_run_gives_exit_code_1_for_a_failed_job_and_logs_shows_the_culprit(
    ddpjob: Commands, namespace: Namespace, cluster: testbed.ControlPlane, tmp_path: Path
) -> None:
    with ddpjob.started("run", job_file(tmp_path, restart={"maxRestarts": 0})) as process:
        await runs(namespace)
        for rank in range(2):
            cluster.append_kwok_log(namespace.name, f"j-1-{rank}", "starts")
        await namespace.ends("j-1-1", 3, "ValueError: boom")
        _, notes = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    assert process.returncode == 1
    assert "Rank 1 (pod j-1-1" in notes.splitlines()[-1]
    assert f"ddpjob logs j -n {namespace.name} --failed" in notes
    output, _ = await ddpjob("logs", "j", "--failed", "-o", "raw")
    assert output == "starts\n"

    async def shows_events() -> bool:
        return "Last events" in (await ddpjob("status", "j"))[0]

    await eventually("the events of the job to be written", shows_events)
    output, notes = await ddpjob("status", "j")
    for text in ("Failed", "rank 1 on kwok-", "exit code 3", "ValueError: boom", "j-1-1", "Conditions", "Last events"):
        assert text in output
    assert f"Next: ddpjob logs j -n {namespace.name} --failed" in output
    _, notes = await ddpjob("wait", "j", "--for", "succeeded", code=1)
    assert "j failed" in notes
    _, notes = await ddpjob("suspend", "j", code=2)
    assert "has failed and cannot be suspended" in notes


async def test_run_sends_the_files_of_a_command(
    ddpjob: Commands, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    arguments = ("run", "--name", "j", "--nodes", "2", "--detach", "--", "python", "train.py")
    checked, _ = await ddpjob("run", "--dry-run=server", *arguments[1:])
    assert [body["kind"] for body in yaml.safe_load_all(checked)] == ["ConfigMap", "DDPJob"]
    _, notes = await ddpjob(*arguments)
    assert "1 file (8 B)" in notes
    await runs(namespace)
    pod = (await namespace.pods())["j-1-1"]["spec"]
    (volume,) = (volume["configMap"] for volume in pod["volumes"] if "configMap" in volume)
    config_map = await namespace.find(CONFIG_MAPS, volume["name"])
    assert config_map is not None
    assert config_map["data"] == {"train.py": "print(1)"}
    _, notes = await ddpjob(*arguments, code=2)
    assert "already exists" in notes


async def test_ctrl_c_ends_the_command_and_not_the_job(ddpjob: Commands, namespace: Namespace, tmp_path: Path) -> None:
    with ddpjob.started("run", job_file(tmp_path)) as process:
        await runs(namespace)
        assert process.stderr is not None
        while "Running" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, notes = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    assert process.returncode == 130
    assert "the job continues. To follow it: ddpjob logs j" in notes
    assert "Traceback" not in notes
    assert (await namespace.status("j"))["phase"] == "Running"


async def test_list_logs_and_events_in_each_format(
    ddpjob: Commands, namespace: Namespace, cluster: testbed.ControlPlane, tmp_path: Path
) -> None:
    assert await ddpjob("list") == (
        "",
        f"ddpjob: no jobs in namespace {namespace.name}; to start one: ddpjob run FILE\n",
    )
    _, notes = await ddpjob("run", job_file(tmp_path), "--detach")
    assert f"ddpjob status j -n {namespace.name}" in notes
    await namespace.reaches("j", "Running")
    output, _ = await ddpjob("list")
    assert output.split()[:8] == ["NAME", "PHASE", "REASON", "READY", "ATTEMPT", "STEP", "ETA", "AGE"]
    assert output.splitlines()[1].split()[:5] == ["j", "Running", "Running", "2/2", "1"]
    output, _ = await ddpjob("list", "-A")
    assert [namespace.name, "j"] in [line.split()[:2] for line in output.splitlines()]
    assert json.loads((await ddpjob("list", "-o", "json"))[0])["items"][0]["spec"]["nodes"] == 2
    assert yaml.safe_load((await ddpjob("status", "j", "-o", "yaml"))[0])["kind"] == "DDPJob"

    cluster.append_kwok_log(namespace.name, "j-1-0", 'zero\nother\nddpjob-progress {"step": 1, "loss": 0.5}')
    cluster.append_kwok_log(namespace.name, "j-1-1", "one")
    for options, expected in (((), ["[r00", "[r00", "[r01"]), (("--raw",), ["[r00", "[r00", "[r00", "[r01"])):
        output, _ = await ddpjob("logs", "j", *options)
        assert [line.partition("]")[0].split()[0] for line in output.splitlines()] == expected
    assert (await ddpjob("logs", "j", "--rank", "0", "--grep", "^z", "-o", "raw"))[0] == "zero\n"
    line = json.loads((await ddpjob("logs", "j", "--rank", "1-3", "-o", "json"))[0])
    assert (line["rank"], line["attempt"], line["text"]) == (1, 1, "one")
    _, notes = await ddpjob("logs", "j", "--attempt", "7")
    assert "attempt 7 has not started" in notes

    async def shows_events() -> bool:
        return "Pod/j-1-1" in (await ddpjob("events", "j"))[0]

    await eventually("the scheduler's events", shows_events)
    for command in ("list", "status j", "explain j", "wait j --for running"):
        assert (await ddpjob(*command.split(), "-o", "name"))[0] == "ddpjob.ddpjob.dev/j\n"
    assert (await ddpjob("events", "j", "-o", "name"))[0].startswith("event/")
    assert (await ddpjob("plot", "j", "-o", "name"))[0] == "loss\n"
    (point,) = json.loads((await ddpjob("plot", "j", "-o", "json"))[0])["j"]["loss"]
    assert (point["step"], point["value"]) == (1, 0.5)
    for command in ("top", "stacks"):
        names, _ = await ddpjob(command, "j", "-o", "name", code={"top": 0, "stacks": 2}[command])
        assert names == "pod/j-1-0\npod/j-1-1\n"


async def test_suspend_resume_restart_wait_and_delete(ddpjob: Commands, namespace: Namespace, tmp_path: Path) -> None:
    await ddpjob("run", job_file(tmp_path), "--detach")
    await ddpjob("wait", "j", "--for", "running", "--timeout", f"{SECONDS}s")
    _, notes = await ddpjob("wait", "j", "--timeout", "0.1s", code=124)
    assert "did not become finished within 0.1 s: it is Running" in notes
    _, notes = await ddpjob("restart", "j")
    assert "j is suspended and starts again when its pods have stopped" in notes
    await namespace.reaches("j", "Running", attempt=2)
    await ddpjob("suspend", "j")
    await namespace.reaches("j", "Suspended", attempt=3)
    await ddpjob("resume", "j")
    await namespace.reaches("j", "Running", attempt=3)
    _, notes = await ddpjob("delete", "j")
    assert "files in volumes, such as checkpoints, stay" in notes
    _, notes = await ddpjob("status", "j", code=2)
    assert f"DDPJob {namespace.name}/j does not exist; to list those that do: ddpjob list -n {namespace.name}" in notes


async def test_live_views_leave_one_screen_behind(ddpjob: Commands, namespace: Namespace, tmp_path: Path) -> None:
    """On terminals that are shorter and narrower than what they show."""
    await ddpjob("run", job_file(tmp_path), "--detach")
    with (
        ddpjob.on_a_terminal("status", "j", "-w", columns=60, rows=12) as status,
        ddpjob.on_a_terminal("top", "j", "--interval", "0.5", columns=60, rows=12) as top,
    ):
        for terminal, text in ((status, "2/2"), (top, "no answer")):
            await asyncio.to_thread(terminal.read_until, text)
            assert terminal.screen.used_alternate
            assert len(terminal.screen.text.splitlines()) <= 12
        await namespace.succeeds("j")
        for terminal in (status, top):
            await asyncio.to_thread(terminal.read_until, "")
            assert terminal.process.wait(SECONDS) == 0
    assert status.screen.text.count("State") == 1
    assert "Succeeded" in status.screen.text
    assert "Next: ddpjob logs j -n" in status.screen.text, "the last state is printed as a whole"
    assert top.screen.text.count("RANK") == 1
    assert "j succeeded after" in top.screen.text
    for terminal in (status, top):
        assert max(map(len, terminal.screen.text.splitlines())) <= 60


async def test_run_on_a_terminal_shows_lines_above_one_bar(
    ddpjob: Commands, namespace: Namespace, cluster: testbed.ControlPlane, tmp_path: Path
) -> None:
    with ddpjob.on_a_terminal("run", job_file(tmp_path), "--set", "nodes=1") as terminal:
        await runs(namespace)
        cluster.append_kwok_log(namespace.name, "j-1-0", 'hello\nddpjob-progress {"step": 3, "totalSteps": 9}')
        await asyncio.to_thread(terminal.read_until, "hello")
        await asyncio.to_thread(terminal.read_until, "step 3/9")
        await namespace.ends("j-1-0", 0)
        await asyncio.to_thread(terminal.read_until, "")
        assert terminal.process.wait(SECONDS) == 0
    shown = terminal.screen.text
    assert (shown.count("[rank 0] hello"), "━" in shown) == (1, False)
    assert "j succeeded after" in shown.splitlines()[-1]


async def test_dry_runs_create_nothing(ddpjob: Commands, tmp_path: Path) -> None:
    file = job_file(tmp_path)
    client = yaml.safe_load((await ddpjob("run", file, "--dry-run=client"))[0])
    assert client["spec"]["nodes"] == 2
    server = yaml.safe_load((await ddpjob("run", file, "--dry-run=server"))[0])
    assert server["spec"]["restart"]["maxRestarts"] >= 0, "the server has filled in the defaults"
    assert (await ddpjob("list", "-o", "name"))[0] == ""


async def test_missing_rights_are_exit_code_3(cluster: testbed.ControlPlane, ddpjob: Commands, tmp_path: Path) -> None:
    token = cluster.kubectl("create", "token", "default", "-n", "default").strip()
    config = cluster.kubectl.json("config", "view", "--raw", "--flatten")
    config["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    _, notes = await ddpjob("list", "--kubeconfig", str(file), code=3)
    assert "you may not list ddpjobs in namespace operator-" in notes
    assert "ask an administrator for this right (to check: kubectl auth can-i list ddpjobs -n operator-" in notes
