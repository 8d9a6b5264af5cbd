"""The commands that need files only: init, validate, render, convert."""

from pathlib import Path

import pytest
import yaml

from ddpjob_cli.__main__ import main
from ddpjob_cli.manifest import read_manifest
from ddpjob_cli.starter import Answers, starter_file
from ddpjob_operator.core.job_names import valid_name
from support import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "manifests/examples").glob("*.yaml"))
ANSWERS = Answers(name="my-job", nodes=2, gpus_per_node=4, script="train.py", recipe="", image="")


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("My Project", "my-project"),
        ("3d_net", "job-3d-net"),
        ("ü", "job"),
        ("a" * 80, "a" * 52),
        ("1" * 80, "job-" + "1" * 48),
    ],
)
def test_the_name_of_a_job_follows_from_that_of_a_directory(directory: str, name: str) -> None:
    assert valid_name(directory) == name


@pytest.mark.parametrize("script", ["", "train.py"])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_a_new_file_is_valid(tmp_path: Path, script: str, gpus: int) -> None:
    file = tmp_path / "ddpjob.yaml"
    recipe = "" if script else "digits"
    answers = Answers(name="my-job", nodes=2, gpus_per_node=gpus, script=script, recipe=recipe, image="")
    file.write_text(starter_file(answers))

    spec = read_manifest(file).spec
    assert (spec.nodes, spec.gpus_per_node, bool(spec.command)) == (2, gpus, bool(script))
    commented = file.read_text().replace("  #   volume:", "    volume:", 1)
    for field in ("checkpoint", "restart", "scheduling", "deadlines"):
        commented = commented.replace(f"  # {field}:", f"  {field}:")
    file.write_text(commented)
    spec = read_manifest(file).spec
    assert spec.checkpoint is not None, "what is commented out is valid, too"
    assert (spec.scheduling.queue_name if spec.scheduling else None, spec.restart.in_place) == ("team-a", not script)


def test_init_does_not_overwrite_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ddpjob.yaml"
    file.write_text("mine")

    assert main(["init", str(file), "--recipe", "digits"]) == 2
    assert (file.read_text(), "--force" in capsys.readouterr().err) == ("mine", True)
    assert main(["init", str(file), "--recipe", "digits", "--force"]) == 0
    assert f"ddpjob run {file} --local" in file.read_text(), "the comments name the file"
    assert main(["validate", str(file)]) == 0
    (tmp_path / "link.yaml").symlink_to(tmp_path / "absent")
    assert main(["init", str(tmp_path / "link.yaml"), "--recipe", "digits"]) == 2


@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        (["--script", "a b: c.py"], ["python", "a b: c.py"], ""),
        (["--script", "- [x].py"], ["python", "- [x].py"], ""),
        (["--script", "yes", "--image", "3"], ["python", "yes"], ""),
        (["--recipe", "2"], None, 'init: spec.trainer.recipe is "2"'),
        (["--recipe", "digits", "--name", "Bad_Name"], None, 'init: metadata.name is "Bad_Name"; expected at most'),
        (["--recipe", "digits", "--name", "yes"], None, ""),
    ],
)
def test_init_writes_only_what_validate_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], command: object, message: str
) -> None:
    file = tmp_path / "ddpjob.yaml"
    assert main(["init", str(file), *options]) == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert file.exists() is not bool(message)
    if not message:
        assert main(["validate", str(file)]) == 0
        assert yaml.safe_load(file.read_text())["spec"].get("command") == command


def test_validate_reports_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(starter_file(ANSWERS).replace("nodes: 2", "nodes: 0").replace("gpusPerNode", "gpus"))

    assert main(["validate", *map(str, EXAMPLES), str(bad)]) == 2
    printed = capsys.readouterr()
    assert printed.out.count("is valid") == len(EXAMPLES)
    assert "digits is valid (recipe and settings are checked when the job starts)\n" in printed.out
    assert "bad.yaml: spec.nodes is 0" in printed.err
    assert "spec.gpus is not a known field" in printed.err


@pytest.mark.parametrize(("option", "warns"), [("--standalone", True), ("--nnodes=1", True), ("--nnodes=2", False)])
def test_validate_warns_of_a_command_by_which_each_pod_trains_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, warns: bool
) -> None:
    file = tmp_path / "ddpjob.yaml"
    spec = {"nodes": 2, "command": ["torchrun", option, "train.py"]}
    file.write_text(
        yaml.safe_dump({"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "j"}, "spec": spec})
    )
    assert main(["validate", str(file)]) == 0
    assert ("each of the 2 pods trains alone" in capsys.readouterr().err) == warns


def test_render_shows_the_pods_that_the_operator_creates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ddpjob.yaml"
    file.write_text(starter_file(ANSWERS))

    assert main(["render", str(file), "--pods", "--set", "nodes=3"]) == 0
    items = yaml.safe_load(capsys.readouterr().out)["items"]
    assert [item["metadata"]["name"] for item in items] == [
        "my-job-master",
        "my-job-ranks",
        "my-job-1-0",
        "my-job-1-1",
        "my-job-1-2",
    ]
    assert main(["render", str(file), "--pods", "--provider", "native"]) == 0
    items = yaml.safe_load(capsys.readouterr().out)["items"]
    (group,) = [item for item in items if item["kind"] == "PodGroup"]
    assert items[-1]["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
    assert main(["render", str(file), "--rank", "1"]) == 0
    pod = yaml.safe_load(capsys.readouterr().out)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert main(["render", str(file)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["restart"]["maxRestarts"] == 3, "defaults are shown"
    assert main(["render", str(file), "--rank", "7"]) == 2
    assert "node ranks 0 to 1" in capsys.readouterr().err


def test_convert_prints_a_valid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, ours = tmp_path / "pytorchjob.yaml", tmp_path / "ddpjob.yaml"
    container = {"name": "pytorch", "image": "registry.example.com/a:1", "command": ["python", "train.py"]}
    job = {
        "kind": "PyTorchJob",
        "metadata": {"name": "a"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": {"containers": [container]}}}}},
    }
    theirs.write_text(yaml.safe_dump({"kind": "List", "items": [job]}))

    assert main(["convert", str(theirs)]) == 0
    ours.write_text(capsys.readouterr().out)
    assert main(["validate", str(ours)]) == 0
    assert main(["convert", str(tmp_path / "nowhere.yaml")]) == 2


def test_the_rdma_example_renders_pods_on_the_network_of_their_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (example for example in EXAMPLES if example.name == "rdma.yaml")

    assert main(["render", str(file), "--pods"]) == 0
    pods = [item for item in yaml.safe_load(capsys.readouterr().out)["items"] if item["kind"] == "Pod"]
    assert [(pod["spec"]["hostNetwork"], pod["spec"]["dnsPolicy"]) for pod in pods] == [
        (True, "ClusterFirstWithHostNet")
    ] * 2
    containers = [pod["spec"]["containers"][0] for pod in pods]
    variables = [{entry["name"]: entry.get("value") for entry in container["env"]} for container in containers]
    assert {names["MASTER_ADDR"] for names in variables} == {"rdma-master.default.svc"}
    assert [names["NCCL_IB_HCA"] for names in variables] == ["mlx5", "mlx5"]
    port = int(variables[0]["MASTER_PORT"])
    assert containers[0]["ports"] == [{"containerPort": port, "hostPort": port}]
    for container in containers:
        assert container["resources"]["limits"] == {"rdma/ib": 1, "nvidia.com/gpu": "8"}
        assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
