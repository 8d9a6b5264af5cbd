"""The journal undoes everything that was made, in whatever state it is."""

import subprocess
from pathlib import Path

import pytest

from testbed.journal import Journal, remove_folder
from testbed.processes import ProcessId


def test_a_process_that_only_has_the_same_id_is_left_alone() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    ours = ProcessId.of(sleeper.pid)
    assert ours.alive
    stranger = ProcessId(ours.pid, ours.started + 1)
    assert not stranger.alive
    stranger.kill()
    assert ours.alive
    ours.kill()
    sleeper.wait()


def test_an_entry_that_cannot_be_undone_does_not_stop_the_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    link = tmp_path / "links" / "link"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "instance" / "file")
    journal.record("symlinks", folder=str(link.parent), into=str(tmp_path / "instance"))
    # Writing to a folder fails.
    journal.record("sysctl", path=str(tmp_path), before="0")
    with pytest.raises(ExceptionGroup, match="could be undone"):
        journal.undo()
    assert not link.parent.exists()


def test_only_what_belongs_to_the_cluster_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "ours").symlink_to(tmp_path / "instance" / "file")
    (folder / "foreign").symlink_to(tmp_path / "other" / "file")
    (folder / "net0-a").touch()
    (folder / "net1-a").touch()
    journal.record("symlinks", folder=str(folder), into=str(tmp_path / "instance"))
    journal.record("files", pattern=str(folder / "net0-*"))
    journal.undo()
    assert sorted(path.name for path in folder.iterdir()) == ["foreign", "net1-a"]


def test_a_folder_with_a_mount_in_it_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Mounting needs root; what the kernel would list is enough.
    (tmp_path / "left").mkdir()
    listed = tmp_path / "mountinfo"
    listed.write_text(f"36 35 98:0 / {tmp_path}/left/volume rw,noatime - ext4 /dev/root rw\n")
    monkeypatch.setattr("testbed.journal.MOUNTS", listed)
    with pytest.raises(OSError, match="because there are mounts in it"):
        remove_folder(tmp_path / "left")
    assert (tmp_path / "left").exists()

    listed.write_text(f"36 35 98:0 / {tmp_path}/leftover rw,noatime - ext4 /dev/root rw\n")
    remove_folder(tmp_path / "left")
    assert not (tmp_path / "left").exists()
