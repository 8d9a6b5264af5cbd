from ddpjob_ranks import contract
from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder
from forked_ranks import finished, started

#: 8 steps an epoch, far more epochs than the test lets it train.
KEYS = ("globalBatchSize=200", "checkpointEverySteps=1", "keepCheckpoints=5")


def job(folder, uid: str) -> dict[str, str]:
    return {
        contract.DDPJOB_CHECKPOINT_DIR: str(folder / "checkpoints"),
        contract.DDPJOB_UID: uid,
        contract.DDPJOB_ATTEMPT: "1",
    }


def test_a_job_that_is_deleted_and_applied_again_resumes_and_fences_the_old_one(tmp_path):
    with started(tmp_path / "old", *KEYS, "epochs=10000", ranks=2, environ=job(tmp_path, "old")) as old:
        old.wait_for("checkpoint of step 3: ")
        reapplied = CheckpointFolder(
            claim=Claim(storage=Folder(tmp_path / "checkpoints"), owner=Owner(uid="new", attempt=1)), keep=5
        )
        reapplied.open()
        found = reapplied.load_newest()
        assert found is not None
        assert found[0].step >= 3, "it goes on where the old one was"
        reapplied.save(found[0].step, lambda file: file.write(found[1]))
        assert old.wait()[0] == contract.EXIT_FENCED
    assert (
        "claimed by attempt 1 of job uid new; this is attempt 1 of job uid old, which has been superseded"
        in old.message()
    )
    newest = reapplied.load_newest()
    assert newest is not None
    assert (newest[0].uid, newest[0].step) == ("new", found[0].step)
    end = finished(tmp_path / "new", *KEYS, "epochs=1", ranks=2, environ=job(tmp_path, "new"))
    assert f"resumed from step {found[0].step} in" in end.text()
