from pathlib import Path
from unittest.mock import Mock

from builders import program
from ddpjob_operator.core.render.pods import create_pod
from ddpjob_operator.local.pod import LocalPod


def test_the_record_of_a_process_names_no_user_since_the_pods_user_does_not_apply_to_it(tmp_path: Path) -> None:
    of = program()
    body = create_pod(of, of.spec, "local", 0).body
    pod = LocalPod(
        {**body, "metadata": {**body["metadata"], "uid": "u"}}, Mock(), tmp_path / "log", tmp_path / "message"
    )
    assert pod.record().security is None
