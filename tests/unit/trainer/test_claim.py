"""Only the newest attempt of the newest job may write checkpoints to a folder, also when two attempts race."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints import files
from ddpjob_session.checkpoints.claim import CLAIM, Claim, Fenced, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder, from_environment
from support.saved_states import folder, newest, save


def test_a_lower_attempt_of_the_same_job_is_refused(tmp_path):
    folder(tmp_path, attempt=3)
    with pytest.raises(Fenced, match="claimed by attempt 3 of job uid u1; this is attempt 2"):
        folder(tmp_path, attempt=2)


def test_a_folder_that_this_user_may_not_search_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "open_to_read", Mock(side_effect=PermissionError(13, "Permission denied")))
    claim = Claim(storage=Folder(tmp_path), owner=Owner(uid="u1", attempt=1))
    with pytest.raises(ConfigError, match=r"cannot read it \(Permission denied\); give that uid access .*fsGroup"):
        claim.check()


@pytest.mark.parametrize(("uid", "attempt"), [("u1", 1), ("u1", 2), ("u2", 1)])
def test_the_same_attempt_a_later_one_and_a_reapplied_job_resume(tmp_path, uid, attempt):
    save(folder(tmp_path, uid="u1", attempt=1), 5, b"five")
    checkpoints = folder(tmp_path, uid=uid, attempt=attempt)
    assert newest(checkpoints) == (5, b"five")
    save(checkpoints, 6, b"six")
    assert newest(checkpoints) == (6, b"six")


@pytest.mark.parametrize(("uid", "attempt"), [("u1", 2), ("u2", 1)])
def test_a_late_rank_cannot_commit(tmp_path, uid, attempt):
    late = folder(tmp_path, uid="u1", attempt=1)
    save(late, 5, b"five")
    current = folder(tmp_path, uid=uid, attempt=attempt)
    with pytest.raises(Fenced):
        save(late, 6, b"late")
    assert newest(current) == (5, b"five")


def test_a_pod_of_rank_0_that_was_replaced_cannot_commit(tmp_path):
    """It may still run on a node that the cluster has given up; its last commit does not count either."""
    late = folder(tmp_path, attempt=1)
    save(late, 5, b"five")
    current = folder(tmp_path, attempt=1, replacement=1)
    with pytest.raises(
        Fenced, match="claimed by attempt 1, replacement 1 of rank 0's pod, of job uid u1; this is attempt 1"
    ):
        save(late, 6, b"late")
    assert newest(current) == (5, b"five")
    save(current, 6, b"six")
    save(CheckpointFolder(claim=UnfencedClaim(storage=Folder(tmp_path), owner=late.claim.owner), keep=3), 7, b"late")
    following = folder(tmp_path, attempt=1, replacement=2)
    assert newest(following) == (6, b"six")
    with pytest.raises(Fenced):
        save(current, 8, b"eight")
    assert newest(folder(tmp_path, attempt=2)) == (6, b"six")


def test_a_claim_of_an_earlier_release_is_that_of_the_first_pod(tmp_path):
    Folder(tmp_path).write(CLAIM, lambda file: file.write(b'{"uid": "u1", "attempt": 2}'))
    folder(tmp_path, attempt=2, replacement=1)
    with pytest.raises(Fenced):
        folder(tmp_path, attempt=2)


def test_a_claim_written_over_by_a_late_lower_attempt_is_taken_back(tmp_path):
    current = folder(tmp_path, attempt=2)
    late = Claim(storage=Folder(tmp_path), owner=Owner(uid="u1", attempt=1))
    late.storage.write(
        CLAIM, lambda file: file.write(b'{"uid": "u1", "attempt": 1}')
    )  # both read the empty folder at once, and the lower attempt wrote last
    save(current, 5, b"five")
    with pytest.raises(Fenced):
        late.confirm()


@dataclass(frozen=True, kw_only=True)
class OvertakenClaim(Claim):
    """A late rank's: `meanwhile` happens after its last look at the claim and before its commit."""

    meanwhile: Callable[[], None]
    looks: list[int] = field(default_factory=list)

    def confirm(self) -> None:
        super().confirm()
        self.looks.append(1)
        if len(self.looks) == 4:  # two looks for each of two saves
            self.meanwhile()


@pytest.mark.parametrize(("uid", "attempt"), [("u1", 2), ("u2", 1)])
def test_a_commit_in_a_race_neither_changes_nor_replaces_checkpoints_of_a_newer_attempt_or_job(tmp_path, uid, attempt):
    def overtake() -> None:
        current = folder(tmp_path, uid=uid, attempt=attempt, keep=2)
        assert newest(current) == (5, b"five")
        save(current, 6, b"six")
        save(current, 7, b"seven")

    owner = Owner(uid="u1", attempt=1)
    late = CheckpointFolder(claim=OvertakenClaim(storage=Folder(tmp_path), owner=owner, meanwhile=overtake), keep=2)
    late.open()
    save(late, 5, b"five")
    save(late, 9, b"late")
    newer = f"attempt-{attempt}-{uid}.json"
    assert {f"step-0000000006-{newer}", f"step-0000000007-{newer}", "step-0000000009-attempt-1-u1.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    with pytest.raises(Fenced):
        save(late, 10, b"later")
    following = folder(tmp_path, uid=uid, attempt=attempt + 1, keep=2)
    assert newest(following) == (7, b"seven"), "though 9 is more than 7"
    save(following, 8, b"eight")
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        f"step-0000000007-attempt-{attempt}-{uid}.pt",
        f"step-0000000008-attempt-{attempt + 1}-{uid}.pt",
    ]


def test_a_checkpoint_that_a_late_rank_has_just_dropped_is_replaced_by_the_one_that_it_made_room_for(
    tmp_path, monkeypatch
):
    first = folder(tmp_path, attempt=1, keep=1)
    save(first, 5, b"five")
    late = CheckpointFolder(claim=UnfencedClaim(storage=Folder(tmp_path), owner=first.claim.owner), keep=1)
    current = folder(tmp_path, attempt=2, keep=1)
    reads: list[str] = []
    read = Folder.read

    def overtaken(self: Folder, name: str, *arguments: Any, **limit: Any) -> tuple[bytearray, str]:
        reads.append(name)
        if len(reads) == 1:  # of what was listed before
            save(late, 9, b"late")
        return read(self, name, *arguments, **limit)

    monkeypatch.setattr(Folder, "read", overtaken)
    assert newest(current) == (9, b"late")
    assert not list(tmp_path.glob("*.corrupt"))


def test_a_race_overwrites_nothing(tmp_path):
    one, two = folder(tmp_path, attempt=1), folder(tmp_path, attempt=2)
    save(two, 5, b"from attempt 2")
    late = CheckpointFolder(claim=UnfencedClaim(storage=Folder(tmp_path), owner=one.claim.owner), keep=3)
    save(late, 5, b"from attempt 1")
    assert newest(two) == (5, b"from attempt 2")


class UnfencedClaim(Claim):
    """A writer between its last look at the claim and its commit."""

    def confirm(self) -> None:
        pass


@pytest.mark.parametrize(
    ("started", "restarted"),
    [
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8"}),
        ({}, {}),
    ],
    ids=["queued again by Slurm", "submitted again to Slurm", "started again by hand"],
)
def test_without_an_operator_too_a_later_start_resumes_and_fences_the_one_before(tmp_path, started, restarted):
    there = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path)}
    late, current = (from_environment({**there, **job}, keep=1, report=print) for job in (started, restarted))
    late.open()
    save(late, 5, b"five")
    current.open()
    assert newest(current) == (5, b"five")
    with pytest.raises(Fenced):
        save(late, 9, b"late")
    save(current, 6, b"six")
    assert newest(current) == (6, b"six")


def test_a_rank_whose_file_is_removed_while_it_writes_reports_the_newer_attempt(tmp_path, monkeypatch):
    late = folder(tmp_path, attempt=1)
    monkeypatch.setattr(os, "fsync", lambda _: newer_opens())

    def newer_opens() -> None:
        monkeypatch.undo()
        folder(tmp_path, attempt=2)

    with pytest.raises(Fenced, match="is claimed by attempt 2"):
        save(late, 9, b"nine")
