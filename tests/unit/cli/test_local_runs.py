"""The directory of a local run takes the place of a job; processes/local/test_local_run_fails.py shows one of a real run."""

import os
from pathlib import Path
from typing import Any

import pytest

from ddpjob_cli import run_local
from ddpjob_cli.__main__ import main
from ddpjob_cli.local_runs import how_to_continue, interrupted, marked_as_running, pid_of, write_objects
from ddpjob_cli.run_local import _new_folder
from ddpjob_operator.api.status import DDPJobStatus, Progress


def run_of(folder: Path, time: str, *logs: str) -> Path:
    """The directory of a run that has not ended."""
    run = folder / f"net-2-{time}"
    (run / "logs").mkdir(parents=True)
    for log in logs:
        (run / "logs" / f"{log}.log").write_text(f"{log} prints\x1b[31m\n", encoding="utf-8")
    return run


def test_a_run_that_has_not_ended_has_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, "20261123-084053", "net-2-1-0", "net-2-2-0", "net-2-2-1", "net-2-2-1-1")
    assert main(["logs", str(run), "-o", "raw"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["net-2-2-0", "net-2-2-1", "net-2-2-1-1"]
    assert "\x1b" not in shown
    assert main(["logs", str(run), "--attempt", "1"]) == 0
    assert capsys.readouterr().out.startswith("[r00] net-2-1-0 prints")
    (run / "logs/net-2-1-0.log").write_text("one\ntwo\nthree\n")
    assert main(["logs", str(run), "--attempt", "1", "--tail", "2", "-o", "raw"]) == 0
    assert capsys.readouterr().out == "two\nthree\n"
    assert main(["status", str(run)]) == 2
    assert (
        "the run has just begun, or its state cannot be kept there. To see what it has printed so far: ddpjob logs"
        in capsys.readouterr().err
    )


def test_the_directory_of_a_run_is_the_users_own_and_nothing_is_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("profile").write_text("mine")
    Path(".ddpjob").mkdir()
    Path(".ddpjob/.gitignore").symlink_to("../profile")  # as a repository of somebody else may have it
    folders = [run_local._new_folder("net") for _ in range(2)]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 2
    assert Path("profile").read_text() == "mine"


def test_an_interrupted_run_says_what_it_saved_and_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, "20261123-084053")
    (run / "logs/net-2-1-0.termination").write_text("checkpointStep=241")
    progress = Progress(step=230, total_steps=400, checkpoint_step=200, eta="9s")
    seen = DDPJobStatus(phase="Running", reason="Running", message="all 2 pods run", ready="2/2", progress=progress)
    status = interrupted(seen, run, "net-2", "SIGINT").as_json()
    metadata = {"name": "net-2", "namespace": "default"}
    write_objects(run, {"metadata": metadata, "spec": {"command": ["x"]}, "status": status}, [])

    assert main(["explain", str(run)]) == main(["status", str(run)]) == 0
    explained, _, shown = capsys.readouterr().out.partition("\nJob ")
    assert "is Interrupted in attempt 1: SIGINT ended the run, with a checkpoint of step 241" in explained
    assert "Start the same command again; it begins at step 0, since the job has no checkpoint" in explained
    assert "step 241/400 (60%) · checkpoint at step 241\n" in shown
    assert "Running" not in shown
    assert "Next: Start the same command again" in shown


def test_a_run_is_looked_at_while_it_runs_after_it_was_killed_and_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / ".ddpjob/runs", "20261123-084052")
    run = run_of(tmp_path / ".ddpjob/runs", "20261123-084053")
    status = DDPJobStatus(phase="Running", reason="Running", message="all 2 pods run", attempt=1).as_json()
    metadata = {"name": "net-2", "namespace": "default"}
    write_objects(run, {"metadata": metadata, "spec": {"command": ["x"]}, "status": status}, [])
    with marked_as_running(run):
        assert pid_of(run) == os.getpid()
        assert main(["list", "--local"]) == main(["status", "."]) == 0
        assert main(["wait", ".", "--timeout", "0s"]) == 124
        shown = capsys.readouterr().out
        assert ".ddpjob/runs/net-2-20261123-084053  Running" in shown
        assert shown.count("20261123-084052") == 0, "nothing is known of it"
    assert pid_of(run) is None
    assert main(["wait", "."]) == 1
    assert main(["explain", "."]) == 0
    assert "the run was killed, and none of its processes is left" in capsys.readouterr().out
    assert main(["delete", "."]) == 0
    assert [left.name for left in Path(".ddpjob/runs").iterdir()] == ["net-2-20261123-084052"]


def test_logs_are_as_clean_as_the_output_of_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, "20261123-084053", "net-2-1-0")
    text = 'step 1/9 loss 0.12345678\nddpjob-progress {"step": 1}\n 1%|\r 50%|\r100%|done\n'
    (run / "logs/net-2-1-0.log").write_text(text, encoding="utf-8", newline="\n")
    assert main(["logs", str(run)]) == main(["logs", str(run), "--raw"]) == 0
    clean = ["[r00] step 1/9 loss 0.123", "[r00] 100%|done"]
    raw = ["[r00] step 1/9 loss 0.12345678", '[r00] ddpjob-progress {"step": 1}', "[r00] 100%|done"]
    assert capsys.readouterr().out.splitlines() == [*clean, *raw]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ({"uri": "s3://b/p"}, "under the name net-2 it continues from the newest checkpoint"),
        ({"volume": {"hostPath": {"path": "/c"}}}, "under the name net-2 it continues from the newest checkpoint"),
        ({"volume": {"emptyDir": {}}}, "set checkpoint.volume to a hostPath to continue"),
    ],
)
def test_what_continues_an_interrupted_run_depends_on_its_checkpoint(checkpoint: Any, expected: str) -> None:
    assert how_to_continue({"metadata": {"name": "net-2"}, "spec": {"checkpoint": checkpoint}}).endswith(expected)


def test_a_cluster_that_is_not_there_leads_to_the_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "absent")
    run = run_of(tmp_path / ".ddpjob/runs", "20261123-084053")
    for job, found in (("net-2", True), ("net", True), ("other", False)):
        assert main(["plot", job]) == 3
        error = capsys.readouterr().err
        assert "there is no kubeconfig" in error
        assert (f"a local run of a similar name: ddpjob plot .ddpjob/runs/{run.name}\n" in error) == found


def test_the_name_of_a_job_means_its_newest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(tmp_path, "20261123-084053", "net-2-1-0")
    run_of(tmp_path, "20261123-084054", "net-2-3-0")
    run_of(tmp_path, "20261123-084054-2", "net-2-5-0")
    (tmp_path / "net-2-large-20261123-084055/logs").mkdir(parents=True)
    assert main(["logs", str(tmp_path / "net-2"), "-o", "raw"]) == 0
    assert capsys.readouterr().out.split()[0] == "net-2-5-0"


def test_a_run_is_compared_with_one_that_has_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the legend shows the paths, if they are short
    trained, failed = run_of(Path("a"), "20261123-084053"), run_of(Path("b"), "20261123-084054")
    values = [(2, 0.5), (5, 0.4), (8, 0.3)]
    lines = [f'ddpjob-progress {{"step": {step}, "totalSteps": 9, "loss": {loss}}}\n' for step, loss in values]
    (trained / "logs/net-2-1-0.log").write_text("".join(lines), encoding="utf-8")
    status = DDPJobStatus(phase="Failed", attempt=1).as_json()
    for run in (trained, failed):
        write_objects(run, {"metadata": {"name": "net-2", "namespace": "default"}, "spec": {}, "status": status}, [])
    assert main(["plot", str(trained), "--compare", str(failed), "--metric", "loss"]) == 0
    shown = capsys.readouterr().out
    assert "loss" in shown
    assert str(trained) in shown
    assert str(failed) not in shown


_JOB = {
    "metadata": {"name": "../../net", "namespace": "default"},
    "spec": {"command": ["x"]},
    "status": {"phase": "Failed"},
}


@pytest.mark.parametrize(
    "objects",
    [
        "",
        "[]",
        '{"job": 1}',
        '{"job": {}, "pods": []}',
        '{"job": {"metadata": 5}}',
        "[" * 9000,
        '{"pods": ' + "[" * 9000 + "]" * 9000 + "}",
    ],
)
@pytest.mark.parametrize("command", ["status", "explain", "report"])
def test_a_directory_of_somebody_else_is_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, objects: str
) -> None:
    run = run_of(tmp_path, "20261123-084053")
    (run / "objects.json").write_text(objects)
    assert main([command, str(run)]) == 2
    assert "objects.json is not the record of a run" in capsys.readouterr().err


def test_a_report_is_written_here_and_for_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "theirs", "20261123-084053")
    write_objects(run, _JOB, [])
    here = tmp_path / "a/b/here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert main(["report", str(run)]) == 0
    assert [file.name for file in here.iterdir()] == ["net.html"]
    assert (here / "net.html").stat().st_mode & 0o077 == 0
    (here / "net.html").rename(tmp_path / "precious")
    (here / "net.html").symlink_to(tmp_path / "precious")
    assert main(["report", str(run)]) == 2
    assert "net.html: Too many levels of symbolic links; check the path" in capsys.readouterr().err


def test_the_directory_of_a_run_is_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text("x")
    (tmp_path / ".ddpjob").mkdir()
    (tmp_path / ".ddpjob/.gitignore").symlink_to(tmp_path / "precious")
    assert _new_folder("net").stat().st_mode & 0o077 == 0
    assert (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize("name", ["objects.json", "logs/net-2-1-0.log"])
@pytest.mark.parametrize("kind", ["a pipe", "a link"])
def test_a_pipe_or_a_link_in_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    run = run_of(tmp_path, "20261123-084053")
    (run / name).unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(run / name)
    else:
        (tmp_path / "key").write_text("{}")
        (run / name).symlink_to(tmp_path / "key")
    assert main(["status" if name.endswith("json") else "logs", str(run)]) == 2
    assert f"{name} is {'a link' if kind == 'a link' else 'not a regular file'}" in capsys.readouterr().err


def test_other_files_among_the_logs_are_no_logs(tmp_path: Path) -> None:
    run = run_of(tmp_path, "20261123-084053", "net-2-1-0")
    (run / "logs/net-2-x-0.log").touch()
    (run / f"logs/net-2-{'9' * 100}-0.log").touch()
    assert main(["logs", str(run)]) == 0
