"""Checkpoints in a folder: complete or not there, kept and deleted, and what damages them."""

import errno
import hashlib
import json
import os
import re
import resource
import secrets
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import PIECE_BYTES, Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder, from_environment, read_anywhere
from ddpjob_session.checkpoints.storage import ChecksummedFile, UnavailableError
from support.saved_states import folder, newest, save


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def drop_key(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for step in range(1, 6):
        save(checkpoints, step, b"state")
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-0000000004-attempt-1-u1.json",
        "step-0000000004-attempt-1-u1.pt",
        "step-0000000005-attempt-1-u1.json",
        "step-0000000005-attempt-1-u1.pt",
    ]


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".pt", lambda path: cut(path, 0)),
        (".pt", lambda path: cut(path, 500)),
        (".pt", lambda path: path.write_bytes(path.read_bytes() + b"x")),
        (".pt", lambda path: flip(path, 0)),
        (".pt", lambda path: flip(path, 500)),
        (".pt", lambda path: flip(path, -1)),
        (".pt", lambda path: path.unlink()),
        (".json", lambda path: cut(path, 0)),
        (".json", lambda path: cut(path, 30)),
        (".json", lambda path: path.write_bytes(b"\xff" * 100)),
        (".json", lambda path: path.write_text("[]")),
        (".json", drop_key),
        (".json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(tmp_path, suffix, damage):
    checkpoints = folder(tmp_path)
    save(checkpoints, 1, b"a" * 1000)
    save(checkpoints, 2, b"b" * 1000)
    damage(tmp_path / f"step-0000000002-attempt-1-u1{suffix}")
    assert newest(folder(tmp_path, attempt=2)) == (1, b"a" * 1000)
    assert newest(folder(tmp_path, attempt=3)) == (1, b"a" * 1000), "and stays so"


def test_a_checkpoint_of_a_later_release_is_loaded(tmp_path):
    """After a rollback: its manifest may have a field that this release does not know."""
    save(folder(tmp_path), 2, b"two")
    manifest = tmp_path / "step-0000000002-attempt-1-u1.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "added_later": 1}))
    assert newest(folder(tmp_path, attempt=2)) == (2, b"two")


def test_of_several_damaged_checkpoints_the_last_undamaged_one_is_loaded(tmp_path):
    checkpoints = folder(tmp_path, keep=5)
    for step in range(1, 6):
        save(checkpoints, step, b"%d" % step * 1000)
    flip(tmp_path / "step-0000000005-attempt-1-u1.pt", 500)
    (tmp_path / "step-0000000004-attempt-1-u1.pt").unlink()
    (tmp_path / "step-0000000004-attempt-1-u1.json").unlink()
    (tmp_path / "step-0000000003-attempt-1-u1.json").write_bytes(b"")
    assert newest(folder(tmp_path, attempt=2)) == (2, b"2" * 1000)


def test_a_damaged_checkpoint_does_not_count_among_those_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for step in (1, 2):
        save(checkpoints, step, b"state")
    cut(tmp_path / "step-0000000002-attempt-1-u1.pt", 1)
    assert newest(checkpoints) == (1, b"state")
    save(checkpoints, 2, b"again")
    assert newest(checkpoints) == (2, b"again")
    assert (tmp_path / "step-0000000001-attempt-1-u1.json").exists()


def test_the_state_of_a_damaged_checkpoint_is_kept_for_whoever_repairs_it(tmp_path):
    checkpoints = folder(tmp_path)
    save(checkpoints, 1, b"whole")
    save(checkpoints, 2, b"damaged")
    state = tmp_path / "step-0000000002-attempt-1-u1.pt"
    state.write_bytes(b"damage")
    for attempt in (2, 3):
        assert newest(folder(tmp_path, attempt=attempt)) == (1, b"whole")
    assert state.read_bytes() == b"damage"


def test_a_file_that_becomes_shorter_while_it_is_read_has_no_bytes_of_zero_at_its_end(tmp_path):
    (tmp_path / "state").write_bytes(b"x" * (PIECE_BYTES + 10))
    content, digest = Folder(tmp_path).read("state", lambda: os.truncate(tmp_path / "state", PIECE_BYTES))
    assert content == b"x" * PIECE_BYTES
    assert digest == hashlib.sha256(content).hexdigest()


def test_a_folder_in_place_of_a_file_is_said_to_be_one(tmp_path):
    (tmp_path / "weights").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/weights'"):
        read_anywhere(str(tmp_path / "weights"), lambda: None)


def test_files_of_a_crashed_writer_are_removed(tmp_path):
    save(folder(tmp_path), 1, b"whole")
    (tmp_path / ".unfinished-7-step-0000000002-attempt-1-u1.pt").write_bytes(b"half")
    (tmp_path / "step-0000000002-attempt-1-u1.pt").write_bytes(b"its manifest was never written")
    assert newest(folder(tmp_path, attempt=2)) == (1, b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "claim.json",
        "step-0000000001-attempt-1-u1.json",
        "step-0000000001-attempt-1-u1.pt",
    ]


@pytest.mark.parametrize("suffix", ["pt", "json"])
def test_no_file_is_written_through_a_link_that_a_neighbour_on_the_volume_has_planted(tmp_path, monkeypatch, suffix):
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    checkpoints = folder(tmp_path / "job")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    name = f"step-0000000005-attempt-1-u1.{suffix}"
    for link in (f".unfinished-guessed-{name}", name):
        (tmp_path / "job" / link).symlink_to(precious)
    with pytest.raises(FileExistsError):
        save(checkpoints, 5, b"five")
    save(checkpoints, 5, b"five")  # the failed save has removed the link
    assert newest(checkpoints) == (5, b"five")
    assert precious.read_bytes() == b"kept"


@pytest.mark.parametrize("linked", ["ns", "ns/job"])
def test_a_link_in_place_of_the_folder_of_a_volume_is_refused(tmp_path, monkeypatch, linked):
    monkeypatch.setattr(contract, "CHECKPOINT_DIR", str(tmp_path / "volume"))
    (other := tmp_path / "volume" / "other").mkdir(parents=True)
    (other / ".unfinished-1").touch()
    (tmp_path / "volume" / linked).parent.mkdir(exist_ok=True)
    (tmp_path / "volume" / linked).symlink_to(other)
    with pytest.raises(ConfigError, match=f"{linked} is a symbolic link"):
        folder(tmp_path / "volume" / "ns" / "job")
    assert [path.name for path in other.iterdir()] == [".unfinished-1"]


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"uid": "u1", "attempt": 1e400}', '{"uid": "u1", "attempt": "' + "9" * 5000 + '"}', None, 2**43],
)
def test_a_forged_claim_or_manifest_ends_no_run(tmp_path, content):
    def forge(name: str) -> None:
        (tmp_path / name).unlink(missing_ok=True)
        if content is None:
            os.mkfifo(tmp_path / name)  # whoever opens it to read would wait for a writer
        elif isinstance(content, int):
            (tmp_path / name).touch()
            os.truncate(tmp_path / name, content)  # terabytes that take no space
        else:
            (tmp_path / name).write_text(content)

    forge("claim.json")
    checkpoints = folder(tmp_path)
    save(checkpoints, 5, b"five")
    forge("step-0000000009-attempt-1-u1.json")
    forge(f"step-{'9' * 200}-attempt-1-u1.json")
    assert newest(checkpoints) == (5, b"five")


def test_a_state_that_is_larger_than_its_manifest_says_is_not_read(tmp_path):
    checkpoints = folder(tmp_path)
    save(checkpoints, 5, b"five")
    save(checkpoints, 6, b"six")
    os.truncate(next(tmp_path.glob("step-0000000006-*.pt")), 2**43)
    assert newest(checkpoints) == (5, b"five")


@pytest.mark.parametrize(
    ("environ", "owner"),
    [
        ({contract.DDPJOB_UID: "u", contract.DDPJOB_ATTEMPT: "4"}, Owner(uid="u", attempt=4)),
        (
            {contract.DDPJOB_UID: "u", contract.DDPJOB_ATTEMPT: "4", contract.DDPJOB_REPLACEMENTS: "0:2,1:1"},
            Owner(uid="u", attempt=4, replacement=2),
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, Owner(uid="7", attempt=3)),
    ],
)
def test_the_folder_and_its_owner_are_in_the_environment(tmp_path, environ, owner):
    found = from_environment({contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path), **environ}, keep=1, report=print)
    assert found.claim == Claim(storage=Folder(tmp_path), owner=owner)
    for folder_ in ({}, {contract.DDPJOB_CHECKPOINT_DIR: ""}):
        assert from_environment({**environ, **folder_}, keep=1, report=print) is None


def test_files_of_another_program_are_left_alone(tmp_path):
    others = [tmp_path / "step-1000.pt", tmp_path / "step-abc-attempt-x-foo.json"]
    for file in others:
        file.write_text("{}")
    checkpoints = folder(tmp_path)
    save(checkpoints, 9, b"nine")
    assert newest(checkpoints) == (9, b"nine")
    assert all(file.exists() for file in others)


def test_a_checkpoint_that_cannot_be_read_now_is_not_marked_as_damaged(tmp_path, monkeypatch):
    checkpoints = folder(tmp_path)
    save(checkpoints, 1, b"one")

    def fails(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Folder, "read", fails)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoints.load_newest()
    assert newest(checkpoints) == (1, b"one")


def test_a_manifest_without_its_state_does_not_count_among_those_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=1)
    save(checkpoints, 5, b"five")
    orphan = tmp_path / "step-0000000009-attempt-1-u1.json"
    orphan.write_text((tmp_path / "step-0000000005-attempt-1-u1.json").read_text())
    save(checkpoints, 6, b"six")
    assert newest(checkpoints) == (6, b"six")


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.EACCES, ConfigError, r"checkpoint folder .* cannot write it .*fsGroup"),
        *((number, OSError, os.strerror(number)) for number in (errno.EROFS, errno.EIO, errno.ESTALE)),
    ],
)
def test_a_folder_that_may_not_be_written_is_refused_and_other_errors_are_left_to_the_next_attempt(
    tmp_path, monkeypatch, number, error, message
):
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(error, match=message):
        folder(tmp_path / "made")


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match="the path, or a part of it, is a file; set DDPJOB_CHECKPOINT_DIR to a folder"
    ):
        folder(tmp_path / "file" / below)


def test_a_full_disk_leaves_no_unfinished_file(tmp_path, monkeypatch):
    checkpoints = folder(tmp_path)
    save(checkpoints, 9, b"nine")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("ddpjob_session.checkpoints.folder.PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(
        OSError, match=r"attempt-1-u1.pt cannot be written: No space left on device; free space on the volume"
    ):
        save(checkpoints, 10, b"ten")
    assert sorted(tmp_path.iterdir()) == before


def test_a_disk_that_becomes_full_while_torch_writes_is_the_reported_cause(tmp_path):
    """torch.save replaces the error by one of its own, which names neither the disk nor what to do."""
    checkpoints = folder(tmp_path)
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # Python ignores SIGXFSZ: a write beyond it raises
    try:
        with pytest.raises(OSError, match=r"cannot be written: File too large"):
            checkpoints.save(10, lambda file: torch.save(torch.rand(1_000_000), cast("Any", file)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == before


def test_each_file_and_its_name_are_on_the_disk_before_the_next_operation(tmp_path, monkeypatch):
    operations: list[tuple[str, str]] = []

    def recorded(name: str) -> None:
        original = getattr(os, name)

        def operation(target: int | Path, *others: object) -> object:
            path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)
            operations.append((name, re.sub(r"^\.unfinished-\w{16}-", "new ", path.name)))
            return original(target, *others)

        monkeypatch.setattr(os, name, operation)

    for name in ("fsync", "replace", "unlink"):
        recorded(name)
    checkpoints = folder(tmp_path / "made" / "here", keep=1)
    assert operations[:2] == [("fsync", tmp_path.name), ("fsync", "made")], "a folder before what is written into it"
    save(checkpoints, 1, b"one")
    operations.clear()
    save(checkpoints, 2, b"two")
    new, old = "step-0000000002-attempt-1-u1", "step-0000000001-attempt-1-u1"
    assert operations == [
        ("fsync", f"new {new}.pt"),
        ("replace", f"new {new}.pt"),
        ("fsync", "here"),
        ("fsync", f"new {new}.json"),
        ("replace", f"new {new}.json"),
        ("fsync", "here"),
        ("unlink", f"{old}.json"),
        ("unlink", f"{old}.pt"),
    ]


def test_a_save_is_repeated_while_the_storage_does_not_answer(tmp_path, monkeypatch):
    reports: list[str] = []
    checkpoints = CheckpointFolder(
        claim=Claim(storage=Folder(tmp_path), owner=Owner(uid="u1", attempt=1)), keep=1, report=reports.append
    )
    checkpoints.open()
    outages = iter(3 * [True])

    def write(file: ChecksummedFile) -> None:
        file.write(b"first half")
        if next(outages, False):
            raise UnavailableError(errno.EIO, "no answer")
        file.write(b", second half")

    monkeypatch.setattr("ddpjob_session.checkpoints.folder.RETRY_SECONDS", 0.0)
    checkpoints.save(1, write)
    assert newest(checkpoints) == (1, b"first half, second half")
    assert reports == [
        "checkpoint of step 1 is not written yet: no answer. Training continues, and the save is repeated for up to 480 s"
    ]
    monkeypatch.setattr("ddpjob_session.checkpoints.folder.PATIENCE_SECONDS", -1.0)
    outages = iter([True])
    with pytest.raises(UnavailableError, match=r"^checkpoint of step 2 could not be written for .* s: no answer$"):
        checkpoints.save(2, write)


def test_a_folder_and_an_object_store_at_once_are_refused(tmp_path):
    both = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path), contract.DDPJOB_CHECKPOINT_URI: "s3://bucket/runs"}
    with pytest.raises(ConfigError, match="checkpoints are stored in one place; unset one of them"):
        from_environment(both, keep=1, report=print)
