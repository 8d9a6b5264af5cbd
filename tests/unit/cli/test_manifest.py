"""What is said of a manifest that is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob_cli.local.program import expanded
from ddpjob_cli.manifest import ManifestError, command_manifest, read_manifest

GOOD: dict[str, object] = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "job"},
    "spec": {"command": ["python", "x.py"]},
}


def written(tmp_path: Path, *documents: object) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def error(file: Path) -> str:
    with pytest.raises(ManifestError) as raised:
        read_manifest(file)
    assert str(file) in str(raised.value)
    return str(raised.value)


def test_a_manifest_of_the_earlier_version_becomes_one_of_the_current_version(tmp_path: Path) -> None:
    file = written(tmp_path, {**GOOD, "apiVersion": "ddpjob.dev/v1alpha1"})
    assert read_manifest(file).body["apiVersion"] == "ddpjob.dev/v1beta1"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"apiVersion": "v1"}, 'apiVersion is "v1"; expected ddpjob.dev/v1beta1'),
        ({"kind": "Job"}, "found Job; expected exactly one DDPJob"),
        ({"kind": "DDPjob"}, "ConfigMaps that it uses; did you mean kind: DDPJob?"),
        ({"kind": "TrainJob"}, "to convert it: ddpjob convert "),
        ({"metadata": None}, "metadata is null"),
        ({"metadata": {"name": "Job_1"}}, 'metadata.name is "Job_1"; expected at most 52 characters'),
        ({"metadata": {"name": "j" * 53}}, "metadata.name is"),
        ({"metadata": {"name": "job", "namespace": "../up"}}, 'metadata.namespace is "../up"'),
        ({"nodes": 2}, "unknown field nodes; put it below spec"),
        ({"x-gpus": {}}, "unknown field x-gpus; remove it; an anchor may be written where its values are used first"),
    ],
)
def test_the_frame_of_the_job_is_checked(tmp_path: Path, changed: dict[str, object], expected: str) -> None:
    assert expected in error(written(tmp_path, {**GOOD, **changed}))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodes": "two"}, 'spec.nodes is "two"; expected a whole number, without quotes'),
        ({"nodes": 0}, "spec.nodes is 0; it should be greater than or equal to 1"),
        ({"node": 2}, "spec.node is not a known field; did you mean nodes?"),
        ({"trainer": {"epoch": 3}}, "spec.trainer.epoch is not a known field; did you mean epochs?"),
        ({"restart": {"max": 1}}, "spec.restart.max is not a known field; expected one of: maxRestarts"),
        ({"env": [{"valu": "1", "name": "A"}]}, "spec.env[0].valu is not a known field; did you mean value?"),
        ({"env": [{"value": "1"}]}, "spec.env[0].name is missing"),
        ({"env": [{"name": "RANK", "value": "1"}]}, "spec.env[0] (RANK): the operator sets this variable"),
        ({"trainer": {"recipe": "digits"}}, "set exactly one of trainer"),
        ({"command": None}, "set exactly one of trainer"),
        ({"command": None, "trainer": {"recipe": "a b"}}, 'spec.trainer.recipe is "a b"; String should match pattern'),
        ({"checkpoint": {"everySteps": 5}}, "set exactly one of volume"),
        ({"checkpoint": {"uri": "s3://a", "volume": {"emptyDir": {}}}}, "set exactly one of volume"),
        ({"checkpoint": {"uri": "/checkpoints"}}, 'spec.checkpoint.uri is "/checkpoints"; String should match pattern'),
        ({"command": [""]}, "the first item of command is empty"),
        ({"processesPerNode": 2}, "one python process but each node has several ranks"),
        ({"gpusPerNode": 2}, "one python process but each node has several ranks"),
        ({"gpusPerNode": 2, "processesPerNode": 3}, "processesPerNode must equal gpusPerNode"),
        ({"masterPort": 80}, "spec.masterPort is 80"),
        ({"command": ["accelerate", "launch", "x.py"], "processesPerNode": 2}, 'such as command: ["torchrun", "x.py"]'),
        ({"env": {"A": 5}}, 'spec.env is {"A": 5}; expected a list, such as [{"name": "A", "value": "5"}]'),
        ({"command": "python x.py"}, 'expected a list, such as ["python", "x.py"]'),
        (
            {"template": {"spec": {"containers": ["a", "a"]}}},
            'spec.template.spec.containers[0] is "a"; expected ',
        ),
        ({"command": ["x", True]}, 'spec.command[1] is true; expected text, in quotes, such as "true"'),
        (
            {"checkpoint": {"volume": {"emptyDir": {}}, "everySteps": 5}},
            "checkpoint.everySteps applies to the built-in trainer",
        ),
        (
            {"template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "WORLD_SIZE"}]}]}}},
            "spec.template.spec.containers[0] (trainer): env sets a variable",
        ),
        (
            {"template": {"metadata": {"labels": {"ddpjob.dev/rank": "0"}}}},
            "spec.template.metadata: labels with the prefix",
        ),
    ],
)
def test_a_spec_that_a_cluster_refuses_is_refused_in_the_same_words(
    tmp_path: Path, spec: dict[str, object], expected: str
) -> None:
    whole = {"command": ["python", "x.py"], **spec}
    file = written(tmp_path, {**GOOD, "spec": {key: value for key, value in whole.items() if value is not None}})
    assert expected in error(file)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"checkpoint": {"volume": {"persistentVolumeClaims": {"claimName": "c"}}}},
            [
                "spec.checkpoint.volume.persistentVolumeClaims is not a kind of volume; did you mean persistentVolumeClaim?"
            ],
        ),
        (
            {"data": {"volume": {"foo": {}}}, "cache": {"volume": {"hostpath": {"path": "/c"}}}},
            [
                "spec.data.volume.foo is not a kind of volume; expected persistentVolumeClaim, nfs,",
                "spec.cache.volume.hostpath is not a kind of volume; did you mean hostPath?",
            ],
        ),
        ({"data": {"volume": {"emptyDir": {}, "nfs": {}}}}, ["spec.data.volume has emptyDir and nfs; expected one of"]),
        ({"data": {"volume": {"name": "d"}}}, ["spec.data.volume has no kind of volume; expected one of"]),
        ({"data": {"volume": {"emptyDir": None}}}, ["spec.data.volume.emptyDir is None; expected an object"]),
    ],
)
def test_a_volume_of_no_known_kind_is_refused(tmp_path: Path, spec: dict[str, object], expected: list[str]) -> None:
    """The CRD takes any object there, so the cluster would refuse only the pods."""
    lines = error(written(tmp_path, {**GOOD, "spec": {"command": ["python", "x.py"], **spec}})).splitlines()
    assert len(lines) == len(expected)
    assert all(text in line for text, line in zip(expected, lines, strict=True)), lines


def test_a_volume_of_a_known_kind_may_have_a_name(tmp_path: Path) -> None:
    """The operator gives it another one, and stored jobs have such names."""
    volume = {"name": "mine", "persistentVolumeClaim": {"claimName": "c"}}
    assert read_manifest(
        written(tmp_path, {**GOOD, "spec": {"command": ["python", "x.py"], "data": {"volume": volume}}})
    )


def test_a_list_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [GOOD]}
    monkeypatch.setattr("sys.stdin", written(tmp_path, listed).open())
    assert read_manifest(Path("-")).name == "job"


def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in error(tmp_path / "absent.yaml")
    assert "cannot be read (Is a directory)" in error(tmp_path)
    (tmp_path / "a.yaml").write_text("a: [1")
    assert "a.yaml: is not valid YAML: line 1, column 6: while parsing a flow sequence, expected" in error(
        tmp_path / "a.yaml"
    )
    (tmp_path / "t.yaml").write_text("a:\n\tb: 1")
    assert error(tmp_path / "t.yaml").endswith("; indent with spaces instead of tabs")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in error(tmp_path / "b.yaml")
    assert 'found "text"; expected an object' in error(written(tmp_path, "text"))
    assert "DDPJob, DDPJob; expected exactly one DDPJob" in (two := error(written(tmp_path, GOOD, GOOD)))
    assert two.endswith("write one file for each")
    assert "set kind: DDPJob" in error(written(tmp_path, {"spec": {}}))
    assert "found nothing; expected exactly one DDPJob" in error(written(tmp_path))


@pytest.mark.parametrize(
    "forged", [{"kind": "x\nFORGED"}, {"spec\nFORGED": 1}, {"spec": {"x\nFORGED": 1, "command": ["x"]}}]
)
def test_a_name_in_a_file_forges_no_line_of_the_message(tmp_path: Path, forged: dict[str, Any]) -> None:
    assert not any(line.startswith("FORGED") for line in error(written(tmp_path, {**GOOD, **forged})).splitlines())


def test_config_maps_come_along_and_other_objects_are_named(tmp_path: Path) -> None:
    config_map = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a": "b"}}
    manifest = read_manifest(written(tmp_path, config_map, GOOD, {"kind": "Secret", "metadata": {"name": "s"}}, None))
    assert manifest.config_maps == (config_map,)
    assert manifest.others == ("Secret s",)
    assert (manifest.namespace, manifest.name) == ("default", "job")


@pytest.mark.parametrize("own", [{"restartPolicy": "Always"}, {"restartPolicyRules": [{"action": "Restart"}]}])
def test_only_other_containers_may_have_a_restart_policy_of_their_own(tmp_path: Path, own: dict[str, object]) -> None:
    def of(name: str) -> dict[str, object]:
        containers = [{"name": name, "image": "x", **own}]
        return {**GOOD, "spec": {"command": ["x"], "template": {"spec": {"containers": containers}}}}

    assert "a rank that the kubelet restarts alone" in error(written(tmp_path, of("trainer")))
    template = read_manifest(written(tmp_path, of("sidecar"))).spec.template
    assert template is not None
    assert template.model_dump(by_alias=True, exclude_unset=True) == of("sidecar")["spec"]["template"]  # type: ignore[index]


def test_dollars_of_a_command_line_reach_the_program_as_written() -> None:
    text = "$(RANK) $$ ${HOME} $"
    made = command_manifest(["sh", "-c", text], variables=[f"A={text}"], with_files=False)
    assert made.spec.command is not None
    assert expanded(made.spec.command[-1], {"RANK": "0"}) == text
    assert expanded(made.spec.env[0].value or "", {"RANK": "0"}) == text
