"""The parts of a job that a local run ignores."""

from pathlib import Path

import pytest

from ddpjob_cli.local.ignored import ignored_parts
from ddpjob_cli.local.volumes import Mount


def test_everything_that_a_process_cannot_honour_is_named_once() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}]
    main = {"name": "trainer", "command": ["x"], "image": "i", "securityContext": {}, "env": env}
    spec = {
        "containers": [main, {"name": "sidecar"}],
        "securityContext": {},
        "tolerations": [],
        "topologySpreadConstraints": ["the operator's"],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
    }
    mounts = (Mount(path="/data", folder=Path("/here"), instead_of="nfs"), Mount(path="/tmp", folder=Path("/tmp/x")))
    plain = {"containers": [{"image": "local"}], "topologySpreadConstraints": ["the operator's"]}
    assert ignored_parts({"spec": spec}, {"spec": plain}, mounts) == (
        "image",
        "securityContext",
        "tolerations",
        "container sidecar",
        "env TOKEN (valueFrom)",
        "nfs at /data (instead: /here)",
    )


@pytest.mark.parametrize(("working_dir", "expected"), [("/workspace", ("workingDir",)), ("/data/runs", ())])
def test_a_working_directory_of_the_image_is_ignored_and_one_below_a_mount_is_not(
    working_dir: str, expected: tuple[str, ...]
) -> None:
    spec = {"containers": [{"name": "trainer", "command": ["x"], "workingDir": working_dir}]}
    mounts = (Mount(path="/data", folder=Path("/here")),)
    assert ignored_parts({"spec": spec}, {"spec": {"containers": [{}]}}, mounts) == expected
