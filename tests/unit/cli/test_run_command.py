"""`ddpjob run -- COMMAND`: the job that it makes, without a cluster."""

import shlex
from pathlib import Path

import pytest
import yaml

from ddpjob_cli.__main__ import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/layers.py").write_text("WIDTH = 3\n")
    (tmp_path / "train.py").write_text("from net.layers import WIDTH\nprint('width', WIDTH)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_job_follows_from_the_options_and_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "2", "--gpus", "4", "--cpus", "8", "--memory", "16Gi", "--image", "a:1", "--env", "A=b"]
    command = ["torchrun", "train.py", "--nodes", "--", "7"]
    assert main(["run", "--dry-run=client", *options, "--name", "j", "--", *command]) == 0
    shown = capsys.readouterr()
    config_map, job = yaml.safe_load_all(shown.out)
    assert job["metadata"]["name"] == "j"
    assert job["spec"].pop("template")["spec"]["containers"][0]["workingDir"] == "/workspace"
    assert job["spec"] == {
        "command": command,
        "nodes": 2,
        "gpusPerNode": 4,
        "image": "a:1",
        "resources": {"requests": {"cpu": 8, "memory": "16Gi"}},
        "env": [{"name": "A", "value": "b"}],
    }
    assert len(config_map["data"]) == 2
    assert f"2 files (61 B) of {project} travel with the job, to /workspace" in shown.err


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        ("python sub/my_train.py", "my-train-"),
        ("python -m torch.distributed.run net/x.py", "x-"),
        ("python -m ddpjob.launch --x 1 -m pkg.fit", "fit-"),
        ("./run.sh", "run-"),
    ],
)
def test_a_name_follows_from_the_script(command: str, stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--no-files", "--dry-run=client", "--", *command.split()]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"].startswith(stem)


@pytest.mark.usefixtures("project")
def test_the_same_command_runs_on_this_machine(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPJOB_CHECKPOINT_DIR", "mine")
    assert main(["run", "--local", "--nodes", "2", "--", "python", "train.py"]) == 0
    output = capfd.readouterr().out
    assert "[rank 0] width 3" in output
    assert "[rank 1] width 3" in output
    assert (
        "ignores the variable DDPJOB_CHECKPOINT_DIR of this shell; to keep checkpoints, name the job and set" in output
    )


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("setting", "restart"),
    [
        ("nodes=2", {"maxRestarts": 0}),
        ("restart.maxRestarts=2", {"maxRestarts": 2}),
        ("spec.restart.inPlace=true", {"inPlace": True}),
    ],
)
def test_a_command_on_this_machine_is_not_restarted_unless_asked_for(
    setting: str, restart: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--local", "--dry-run=client", "--set", setting, "--", "python", "train.py"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["restart"] == restart


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "python", "trian.py"], "trian.py is not among the 2 files of"),
        (["--gpus", "2", "--", "python", "train.py"], "start a launcher instead, for example [torchrun, train.py]"),
        (["--nodes", "2"], "give a FILE, or a command after --"),
        (["train.py"], "this is the command: ddpjob run -- python train.py"),
        (["job.yaml", "--", "python", "train.py"], "found both job.yaml and a command"),
        (["--"], "found no command after --"),
        (["--local", "--detach", "--", "python", "train.py"], "need a cluster; leave out --local"),
        (["-A", "--", "python", "train.py"], "-A has no effect on `ddpjob run`"),
        (["--set", "nodes=0", "--", "python", "train.py"], "command line: spec.nodes is 0"),
        (
            ["--env", "DDPJOB_CHECKPOINT_DIR=ckpt", "--", "python", "train.py"],
            "or set the field that it comes from, such as checkpoint.volume for DDPJOB_CHECKPOINT_DIR",
        ),
    ],
)
def test_wrong_use_says_what_to_do(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("--local --nodes 2 python train.py", "--local --nodes 2 -- python train.py"),
        ("--local train.py --epochs 3", "--local -- python train.py --epochs 3"),
        ("train.py", "-- python train.py"),
        ("-n team python -m pkg.train 'a b'", "-n team -- python -m pkg.train 'a b'"),
        ("--nodes=2 --local -- train.py", "--nodes=2 --local -- python train.py"),
        ("--local -- --nodes 2 python train.py", "--local --nodes 2 -- python train.py"),
        ("-- --nodes 2 train.py", "--nodes 2 -- python train.py"),
    ],
)
def test_what_everybody_types_first_is_answered_with_the_whole_command(
    words: str, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert main(["run", *shlex.split(words)]) == 2
    assert f"this is the command: ddpjob run {command}" in capsys.readouterr().err
