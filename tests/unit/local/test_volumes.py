"""Volumes of a job as directories of a local run."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob_cli.local.volumes import Mount, localized, mounts_of


def pod(volume: dict[str, Any], mount: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "job-1-0"},
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "v", **mount}]}],
            "volumes": [{"name": "v", **volume}],
        },
    }


def mount_of(
    tmp_path: Path, volume: dict[str, Any], config_maps: tuple[dict[str, Any], ...] = (), **mount: str | bool
) -> Mount:
    (found,) = mounts_of(pod(volume, {"mountPath": "/mnt", **mount}), config_maps, tmp_path / "volumes", tmp_path)
    return found


def config_map(**data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": data}


def test_a_host_path_is_the_folder_itself(tmp_path: Path) -> None:
    assert mount_of(tmp_path, {"hostPath": {"path": str(tmp_path)}}) == Mount(path="/mnt", folder=tmp_path)


def test_a_missing_host_path_is_created_for_programs_that_write(tmp_path: Path) -> None:
    checkpoints = tmp_path / "new/checkpoints"
    assert mount_of(tmp_path, {"hostPath": {"path": str(checkpoints)}}) == Mount(path="/mnt", folder=checkpoints)
    assert checkpoints.is_dir()


@pytest.mark.parametrize(
    ("folder", "read_only", "fault"),
    [("data", True, ", which does not exist,"), ("file/x", False, ", which cannot be created (Not a directory),")],
)
def test_any_other_missing_host_path_is_an_empty_folder_and_said_so(
    tmp_path: Path, folder: str, read_only: bool, fault: str
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / folder
    found = mount_of(tmp_path, {"hostPath": {"path": str(path)}}, readOnly=read_only)
    assert found == Mount(path="/mnt", folder=tmp_path / "volumes/v", instead_of=f"hostPath {path}{fault}")
    assert list(found.folder.iterdir()) == []


def test_a_claim_is_one_folder_for_all_pods_and_an_empty_dir_one_for_each(tmp_path: Path) -> None:
    claim = mount_of(tmp_path, {"persistentVolumeClaim": {"claimName": "c"}})
    assert (claim.folder, claim.instead_of) == (tmp_path / "volumes/v", "persistentVolumeClaim c")
    own = mount_of(tmp_path, {"emptyDir": {}})
    assert (own.folder, own.instead_of) == (tmp_path / "volumes/job-1-0/v", "")


def test_a_config_map_of_the_same_file_becomes_files(tmp_path: Path) -> None:
    found = mount_of(tmp_path, {"configMap": {"name": "code"}}, (config_map(**{"a.py": "A", "b.py": "B"}),))
    assert {file.name: file.read_text() for file in found.folder.iterdir()} == {"a.py": "A", "b.py": "B"}
    assert found.instead_of == ""


def test_items_pick_and_rename_keys(tmp_path: Path) -> None:
    source = {"name": "code", "items": [{"key": "a.py", "path": "sub/main.py"}]}
    found = mount_of(tmp_path, {"configMap": source}, (config_map(**{"a.py": "A", "b.py": "B"}),))
    assert [str(file.relative_to(found.folder)) for file in found.folder.rglob("*.py")] == ["sub/main.py"]


@pytest.mark.parametrize("path", ["../../escape.py", "/etc/escape.py"])
def test_a_config_map_cannot_write_outside_of_its_volume(tmp_path: Path, path: str) -> None:
    source = {"name": "code", "items": [{"key": "a", "path": path}]}
    with pytest.raises(ValueError, match="is outside of the volume"):
        mount_of(tmp_path, {"configMap": source}, (config_map(a="A"),))


def test_a_config_map_from_elsewhere_is_an_empty_folder_and_said_so(tmp_path: Path) -> None:
    assert mount_of(tmp_path, {"configMap": {"name": "code"}}).instead_of == "configMap code"


def test_a_sub_path_is_below_the_volume(tmp_path: Path) -> None:
    found = mount_of(tmp_path, {"persistentVolumeClaim": {"claimName": "c"}}, subPath="run7")
    assert found.folder == tmp_path / "volumes/v/run7"
    assert found.folder.is_dir()
    with pytest.raises(ValueError, match="is outside of the volume"):
        mount_of(tmp_path, {"persistentVolumeClaim": {"claimName": "c"}}, subPath="../run7")


def test_a_sub_path_of_a_config_map_is_its_file(tmp_path: Path) -> None:
    found = mount_of(tmp_path, {"configMap": {"name": "code"}}, (config_map(**{"a.py": "A"}),), subPath="a.py")
    assert found.folder.read_text() == "A"


def test_tmp_is_the_short_folder_and_shared_memory_the_machines_own(tmp_path: Path) -> None:
    assert mount_of(tmp_path, {"emptyDir": {}}, mountPath="/tmp").folder == tmp_path
    assert mount_of(tmp_path, {"emptyDir": {"medium": "Memory"}}, mountPath="/dev/shm").folder == Path("/dev/shm")


def test_a_mount_without_its_volume_is_refused(tmp_path: Path) -> None:
    body = pod({"emptyDir": {}}, {"mountPath": "/mnt", "name": "other"})
    with pytest.raises(ValueError, match="/mnt refers to volume 'other'"):
        mounts_of(body, (), tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["../../../outside", "/etc", "..", "a/b", ""])
def test_the_name_of_a_volume_chooses_no_directory_elsewhere(tmp_path: Path, name: str) -> None:
    body = pod({"name": name, "emptyDir": {}}, {"mountPath": "/mnt", "name": name})
    with pytest.raises(ValueError, match="a to z, 0 to 9 and '-' only"):
        mounts_of(body, (), tmp_path / "run/volumes", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/disk/data"),
        ("/data/train", "/disk/data/train"),
        ("/data/deep/x", "/elsewhere/x"),
        ("/database", "/database"),
        ("--data=/data", "--data=/data"),
        ("data", "data"),
    ],
)
def test_paths_below_a_mount_are_localized(text: str, expected: str) -> None:
    mounts = (Mount(path="/data", folder=Path("/disk/data")), Mount(path="/data/deep", folder=Path("/elsewhere")))
    assert localized(text, mounts) == expected
