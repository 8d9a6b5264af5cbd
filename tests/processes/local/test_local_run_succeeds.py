from pathlib import Path

import pytest

from support.local_command import Outcome, run_job

SHOW_ENVIRONMENT = """
import json, os
print(json.dumps(dict(os.environ)))
print('ddpjob-progress {"step": 7, "totalSteps": 9, "loss": 0.5}')
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("run")
    (folder / "show.py").write_text(SHOW_ENVIRONMENT)
    checkpoint = {"volume": {"persistentVolumeClaim": {"claimName": "ckpt"}}}
    ignored = {"image": "i", "template": {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}}}
    return run_job(folder, {"nodes": 2, "command": ["python", "show.py"], "checkpoint": checkpoint, **ignored})


def test_the_exit_code_is_0_and_the_status_is_that_of_a_cluster(outcome: Outcome) -> None:
    assert outcome.exit_code == 0
    assert outcome.status["phase"] == "Succeeded"
    assert outcome.status["ready"] == "2/2"
    assert outcome.status["attempt"] == 1


def test_progress_lines_are_in_the_status_and_not_in_the_output(outcome: Outcome) -> None:
    assert outcome.status["progress"] == {"step": 7, "totalSteps": 9, "loss": 0.5}
    assert "ddpjob-progress" not in outcome.output


def test_a_rank_has_folders_of_its_own(outcome: Outcome) -> None:
    first, second = outcome.json_of(0)[0], outcome.json_of(1)[0]
    assert first["HOME"] != second["HOME"]
    assert Path(first["HOME"]).is_dir()
    assert first["TMPDIR"] != second["TMPDIR"]
    assert not Path(first["TMPDIR"]).exists()  # gone with the run


def test_the_checkpoint_volume_is_a_folder_of_the_run(outcome: Outcome) -> None:
    folder = Path(outcome.json_of(0)[0]["DDPJOB_CHECKPOINT_DIR"])
    assert folder.parts[-4:] == ("volumes", "checkpoints", "default", "job")
    assert folder.parent.parent.is_dir()


def test_ignored_parts_of_the_job_are_reported(outcome: Outcome) -> None:
    (line,) = (line for line in outcome.output.splitlines() if "ignores" in line)
    for part in ("image", "tolerations", "persistentVolumeClaim ckpt at /checkpoints"):
        assert part in line
    assert "topologySpreadConstraints" not in line, "the operator sets them, not the user"
