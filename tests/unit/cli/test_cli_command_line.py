from pathlib import Path

import pytest
import yaml

from ddpjob_cli.__main__ import main


def test_without_local_it_names_the_clusters_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "job.yaml"]) == 2
    assert "kubectl apply -f job.yaml" in capsys.readouterr().err


def test_a_bad_file_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--local", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml: cannot be read" in capsys.readouterr().err


def test_a_suspended_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "job"},
        "spec": {"command": ["x"], "suspend": True},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert main(["run", "--local", str(file)]) == 2
    assert "spec.suspend is true, so no pod would run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["fly"]])
def test_wrong_use_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
