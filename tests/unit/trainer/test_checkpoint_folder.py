import json
from pathlib import Path

import pytest

from ddpjob_trainer import contract
from ddpjob_trainer.checkpoint import CheckpointFolder, from_environment
from ddpjob_trainer.claim import Claim, Fenced, Owner
from ddpjob_trainer.config import ConfigError


def folder(path: Path, *, uid: str = "u1", attempt: int = 1, keep: int = 3) -> CheckpointFolder:
    """The folder as an attempt opens it."""
    opened = CheckpointFolder(
        claim=Claim(folder=path, owner=Owner(uid=uid, attempt=attempt)), keep=keep, tell=lambda _: None
    )
    opened.open()
    return opened


def newest(checkpoints: CheckpointFolder) -> tuple[int, bytes] | None:
    found = checkpoints.load_newest()
    return None if found is None else (found[0].step, found[1])


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


def test_the_newest_is_loaded(tmp_path):
    checkpoints = folder(tmp_path / "made" / "by-the-program")
    assert newest(checkpoints) is None
    checkpoints.save(9, b"nine")
    checkpoints.save(10, b"ten")
    assert newest(checkpoints) == (10, b"ten")


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for step in range(1, 6):
        checkpoints.save(step, b"state")
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
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path, suffix, damage):
    checkpoints = folder(tmp_path)
    checkpoints.save(1, b"a" * 1000)
    checkpoints.save(2, b"b" * 1000)
    damage(tmp_path / f"step-0000000002-attempt-1-u1{suffix}")
    assert newest(folder(tmp_path, attempt=2)) == (1, b"a" * 1000)
    assert newest(folder(tmp_path, attempt=3)) == (1, b"a" * 1000), "and stays so"


def test_a_damaged_one_counts_no_more_among_those_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.save(step, b"state")
    cut(tmp_path / "step-0000000002-attempt-1-u1.pt", 1)
    assert newest(checkpoints) == (1, b"state")
    checkpoints.save(2, b"again")
    assert newest(checkpoints) == (2, b"again")
    assert (tmp_path / "step-0000000001-attempt-1-u1.json").exists()


def test_what_a_crashed_writer_left_is_cleared(tmp_path):
    folder(tmp_path).save(1, b"whole")
    (tmp_path / ".unfinished-7-step-0000000002-attempt-1-u1.pt").write_bytes(b"half")
    (tmp_path / "step-0000000002-attempt-1-u1.pt").write_bytes(b"its manifest was never written")
    assert newest(folder(tmp_path, attempt=2)) == (1, b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "claim.json",
        "step-0000000001-attempt-1-u1.json",
        "step-0000000001-attempt-1-u1.pt",
    ]


def test_a_lower_attempt_of_the_same_job_is_refused(tmp_path):
    folder(tmp_path, attempt=3)
    with pytest.raises(Fenced, match="claimed by attempt 3 of job uid u1; this is attempt 2"):
        folder(tmp_path, attempt=2)


@pytest.mark.parametrize(("uid", "attempt"), [("u1", 1), ("u1", 2), ("u2", 1)])
def test_the_same_attempt_a_later_one_and_a_reapplied_job_go_on(tmp_path, uid, attempt):
    folder(tmp_path, uid="u1", attempt=1).save(5, b"five")
    checkpoints = folder(tmp_path, uid=uid, attempt=attempt)
    assert newest(checkpoints) == (5, b"five")
    checkpoints.save(6, b"six")
    assert newest(checkpoints) == (6, b"six")


@pytest.mark.parametrize(("uid", "attempt"), [("u1", 2), ("u2", 1)])
def test_a_late_rank_cannot_commit(tmp_path, uid, attempt):
    late = folder(tmp_path, uid="u1", attempt=1)
    late.save(5, b"five")
    current = folder(tmp_path, uid=uid, attempt=attempt)
    with pytest.raises(Fenced):
        late.save(6, b"late")
    assert newest(current) == (5, b"five")


def test_a_claim_written_over_by_a_late_lower_attempt_is_taken_back(tmp_path):
    current = folder(tmp_path, attempt=2)
    late = Claim(folder=tmp_path, owner=Owner(uid="u1", attempt=1))
    late._write()  # both read the empty folder at once, and the lower attempt wrote last
    current.save(5, b"five")
    with pytest.raises(Fenced):
        late.confirm()


def test_a_race_overwrites_nothing(tmp_path):
    one, two = folder(tmp_path, attempt=1), folder(tmp_path, attempt=2)
    two.save(5, b"from attempt 2")
    late = CheckpointFolder(claim=UnfencedClaim(folder=tmp_path, owner=one.claim.owner), keep=3)
    late.save(5, b"from attempt 1")
    assert newest(two) == (5, b"from attempt 2")


class UnfencedClaim(Claim):
    """A writer between its last look at the claim and its commit."""

    def confirm(self) -> None:
        pass


def test_no_variable_means_no_folder(tmp_path):
    assert from_environment({}, keep=1, tell=print) is None
    assert from_environment({contract.DDPJOB_CHECKPOINT_DIR: ""}, keep=1, tell=print) is None
    found = from_environment(
        {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path), contract.DDPJOB_UID: "u", contract.DDPJOB_ATTEMPT: "4"},
        keep=1,
        tell=print,
    )
    assert found is not None
    assert found.claim == Claim(folder=tmp_path, owner=Owner(uid="u", attempt=4))


def test_files_of_another_program_are_left_alone(tmp_path):
    (tmp_path / "step-1000.pt").write_bytes(b"somebody's own")
    folder(tmp_path)
    assert (tmp_path / "step-1000.pt").exists()


def test_a_checkpoint_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch):
    checkpoints = folder(tmp_path)
    checkpoints.save(1, b"one")

    def fails(_path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoints.load_newest()
    assert newest(checkpoints) == (1, b"one")


def test_a_manifest_without_its_state_is_none_to_keep(tmp_path):
    checkpoints = folder(tmp_path, keep=1)
    checkpoints.save(5, b"five")
    orphan = tmp_path / "step-0000000009-attempt-1-u1.json"
    orphan.write_text((tmp_path / "step-0000000005-attempt-1-u1.json").read_text())
    checkpoints.save(6, b"six")
    assert newest(checkpoints) == (6, b"six")


def test_a_folder_that_may_not_be_written_is_refused_with_the_fix(tmp_path, monkeypatch):
    def refuses(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(ConfigError, match=r"checkpoint folder .* cannot write it .*fsGroup"):
        folder(tmp_path / "made")
