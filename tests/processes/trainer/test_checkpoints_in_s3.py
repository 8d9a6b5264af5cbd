"""Real trainings with checkpoints in a real S3 server. `make test-cluster` builds it and runs this file."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="ddpjob[s3] is not installed")

from ddpjob_ranks import contract
from support import s3_server
from support.forked_ranks import ForkedRun, finished, started
from support.processes import DEADLINE_SECONDS
from support.programs.large_state import arrange
from support.s3_server import BUCKET, S3Server
from testbed import tools

pytestmark = pytest.mark.skipif(
    not tools.is_built("versitygw"), reason="the S3 server is not built: make cluster-programs"
)

KEYS = ("globalBatchSize=200", "checkpointEverySteps=2", "logEverySteps=1", "keepCheckpoints=2")  # 8 steps an epoch
PREFIX = "runs/default/digits"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> ForkedRun:
    return finished(tmp_path_factory.mktemp("uninterrupted"), *KEYS, "epochs=3", ranks=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server.started(tmp_path) as server:
        yield server


def job(server: S3Server, attempt: int) -> dict[str, str]:
    return {
        **server.environ,
        contract.DDPJOB_CHECKPOINT_URI: f"s3://{BUCKET}/{PREFIX}",
        contract.DDPJOB_UID: "u1",
        contract.DDPJOB_ATTEMPT: str(attempt),
    }


def test_a_training_that_is_killed_in_the_middle_of_uploads_ends_with_the_same_bits(server, uninterrupted, tmp_path):
    losses: dict[int, float] = {}
    # At which checkpoint, and at which request for it: the first part, a later one, the completion, the manifest.
    moments = [(2, r"pt\?partNumber=1&"), (6, r"pt\?partNumber=3&"), (8, r"pt\?uploadId="), (14, "json ")]
    for attempt, (step, request) in enumerate(moments, start=1):
        name = f"step-{step:010d}-attempt-{attempt}-u1."
        server.hold(rf"(PUT|POST) \S+{re.escape(name)}{request}".encode())
        environ = job(server, attempt)
        with started(tmp_path / str(attempt), *KEYS, "epochs=3", ranks=2, environ=environ, first=arrange) as run:
            assert server.holding.wait(DEADLINE_SECONDS), run.text()
            run.processes[0].kill()
            run.wait()
        server.release()
        losses |= run.losses
        assert "is damaged" not in run.text()
        assert f"{PREFIX}/{name}json" not in server.objects, "it was not committed"
    assert server.num_unfinished_uploads == 3
    end = finished(tmp_path / "end", *KEYS, "epochs=3", ranks=2, environ=job(server, 5), first=arrange)
    assert "resumed from step 12 " in end.text()
    assert losses | end.losses == uninterrupted.losses
    assert end.weights == uninterrupted.weights
    kept = {f"{PREFIX}/step-{step:010d}-attempt-5-u1.{suffix}" for step in (22, 24) for suffix in ("pt", "json")}
    assert {name for name in server.objects if "/step-" in name} == kept

    weights = f"s3://{BUCKET}/{PREFIX}/model.safetensors"
    keys = ("epochs=1", f"initialCheckpoint={weights}")
    assert (
        f"initial weights from {weights}" in finished(tmp_path / "initial", *KEYS, *keys, environ=server.environ).text()
    )


def test_a_newer_attempt_fences_the_older_one(server, tmp_path):
    with started(tmp_path / "older", *KEYS, "epochs=10000", ranks=1, environ=job(server, 1), first=arrange) as older:
        older.wait_for("checkpoint of step 2: ")
        with started(
            tmp_path / "newer", *KEYS, "epochs=10000", ranks=1, environ=job(server, 2), first=arrange
        ) as newer:
            assert older.wait() == [contract.EXIT_FENCED]
            assert f"s3://{BUCKET}/{PREFIX} is claimed by attempt 2 of job uid u1" in older.message()
            newer.wait_for("checkpoint of step [0-9]+: ")
            assert re.search(r"resumed from step \d+ in s3://", newer.text())


def test_training_goes_on_while_the_server_is_down(server, uninterrupted, tmp_path):
    with started(tmp_path / "run", *KEYS, "epochs=3", ranks=2, environ=job(server, 1), first=arrange) as run:
        run.wait_for("checkpoint of step 2: ")
        server.refuse()
        run.wait_for(r"checkpoint of step \d+ is not written yet: s3://.*Training continues")
        late = int(re.findall(r"checkpoint of step (\d+) is not written yet", run.text())[0])
        run.wait_for(rf"step {late + 1}/24 ")
        server.down = False
        run.wait_for(rf"checkpoint of step {late}: ")
        assert run.wait() == [0, 0], run.text()
    assert (run.losses, run.weights) == (uninterrupted.losses, uninterrupted.weights)
    assert run.text().count("is not written yet") == 1
    assert f"{PREFIX}/step-0000000024-attempt-1-u1.json" in server.objects


def test_training_goes_on_if_the_server_goes_down_while_the_best_weights_are_written(server, uninterrupted, tmp_path):
    server.hold(rb"PUT \S+best-model\.safetensors")
    with started(tmp_path / "run", *KEYS, "epochs=3", ranks=2, environ=job(server, 1), first=arrange) as run:
        assert server.holding.wait(DEADLINE_SECONDS), run.text()
        server.refuse()
        run.wait_for("weights of this evaluation are not exported: s3://.*Training continues")
        server.release()
        server.down = False
        assert run.wait() == [0, 0], run.text()
    assert run.weights == uninterrupted.weights
    assert f"{PREFIX}/model.safetensors" in server.objects
