"""What a pod may do and where it may write, by `securityProfile`, and what a failure to write says about it."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.core.model import Security
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.render.pods import create_pod, spec_hash
from ddpjob_operator.core.security import hint_for
from support.builders import NOW, broken, ended, job, program

CHECKPOINT: dict[str, Any] = {"volume": {"emptyDir": {}}}


def body(of):
    return {**create_pod(of, of.spec, "image:1", 0).body, "status": {}}


def main(of):
    return body(of)["spec"]["containers"][0]


def test_baseline_leaves_user_home_and_capabilities_to_the_image() -> None:
    of = program(securityProfile="baseline")
    assert body(of)["spec"]["securityContext"] == {
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert main(of)["securityContext"] == {"readOnlyRootFilesystem": False}
    assert not {"HOME", "USER"} & {variable["name"] for variable in main(of)["env"]}
    assert "home" not in {volume["name"] for volume in body(of)["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("of", "hash_of_release_0_1_0"),
    [
        (job(command=["torchrun", "train.py"], nodes=2), "7cee49e07f67f568"),
        (job(nodes=2), "927a702a5b0301d5"),
        (job(nodes=2, securityProfile="restricted"), "927a702a5b0301d5"),
    ],
)
def test_pods_that_an_older_release_created_still_match_their_job(of, hash_of_release_0_1_0) -> None:
    assert spec_hash(of.spec) == hash_of_release_0_1_0


UID_65532 = Security(uid=65532, read_only_root=False)
READ_ONLY = Security(uid=65532, read_only_root=True)
IMAGE_USER = Security(uid=None, read_only_root=False)
ROOT = {"containers": [{"name": "trainer", "securityContext": {"runAsUser": 0}}]}
USER_1000 = {
    "securityContext": {"runAsUser": 1000},
    "containers": [{"name": "trainer", "securityContext": {"readOnlyRootFilesystem": True}}],
}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (job(), READ_ONLY),
        (program(), UID_65532),
        (program(securityProfile="baseline"), IMAGE_USER),
        (job(securityProfile="baseline"), Security(uid=None, read_only_root=True)),
        (program(template={"spec": USER_1000}), Security(uid=1000, read_only_root=True)),
        (program(template={"spec": ROOT}), Security(uid=0, read_only_root=False)),
    ],
)
def test_the_rights_of_a_pod_are_read_from_the_pod_itself(of, expected) -> None:
    made = body(of)
    assert pod_of({**made, "metadata": {**made["metadata"], "uid": "u"}}).security == expected


DENIED = "PermissionError: [Errno 13] Permission denied: 'snapshot.pt'"
EROFS = "OSError: [Errno 30] Read-only file system: 'snapshot.pt'"


def failure(of, security, error):
    lines = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    save()\n{error}\n'
    seen = broken(of, replace(ended(of, 0, code=1, message=lines), security=security))
    return plan(seen, NOW).status.failure


WRITABLE = "uid 65532 with a writable root file system"
ON_A_MOUNT = f"{WRITABLE}, so the path is on a volume that is mounted read-only, such as spec.data"
HOME = "/tmp and /home/ddpjob"
OTHER_USER = "set spec.securityProfile to baseline to run as the image's own user"
WRITABLE_ROOT = "set readOnlyRootFilesystem to false in spec.template"
IN_A_VOLUME = f"{HOME}, and to /checkpoints if that volume permits it"
IMAGE_S_OWN = "the image's own user with a writable root file system"
BASELINE = program(securityProfile="baseline")


@pytest.mark.parametrize(
    ("of", "security", "error", "user_and_root", "folders", "option"),
    [
        (program(), UID_65532, DENIED, WRITABLE, HOME, OTHER_USER),
        (program(checkpoint=CHECKPOINT), UID_65532, DENIED, WRITABLE, IN_A_VOLUME, OTHER_USER),
        (
            program(cache=CHECKPOINT),
            UID_65532,
            DENIED,
            WRITABLE,
            IN_A_VOLUME.replace("checkpoints", "cache"),
            OTHER_USER,
        ),
        (program(checkpoint={"uri": "s3://bucket"}), UID_65532, DENIED, WRITABLE, HOME, OTHER_USER),
        (BASELINE, IMAGE_USER, DENIED, IMAGE_S_OWN, "/tmp", "set runAsUser in spec.template"),
        (program(), READ_ONLY, EROFS, "uid 65532 with a read-only root file system", HOME, WRITABLE_ROOT),
        (program(), UID_65532, EROFS, ON_A_MOUNT, HOME, None),
    ],
)
def test_an_error_of_a_path_that_cannot_be_written_is_explained(
    of, security, error, user_and_root, folders, option
) -> None:
    usual = ["use an absolute path there", "set workingDir in spec.template", *([f"or {option}"] if option else [])]
    advice = ", ".join(usual) if option else ", or ".join(usual)
    hint = f"the container runs as {user_and_root}. This user can write to {folders}: {advice}"
    assert failure(of, security, error).message == f"{error} (hint: {hint})"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [enforce fail at inline_container.cc:746] . open file failed with strerror: Read-only file system",
        "RuntimeError: [enforce fail at inline_container.cc:746] . open file failed with strerror: Permission denied",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: Permission denied (os error 13)",
        "mkdir: cannot create directory 'runs': Permission denied",
        "sh: 1: cannot create log.txt: Read-only file system",
    ],
)
def test_errors_of_writing_by_torch_and_other_programs_are_recognised(error) -> None:
    assert "(hint: the container runs as uid 65532" in failure(program(), UID_65532, error).message


@pytest.mark.parametrize(
    ("security", "error"),
    [
        (UID_65532, "ValueError: boom"),
        (UID_65532, "PermissionError: [Errno 13] Permission denied"),  # no path: a port below 1024, for example
        (None, DENIED),  # a process of this machine, whose rights the pod does not determine
    ],
)
def test_other_failures_have_no_hint(security, error) -> None:
    assert failure(program(), security, error).message == error


ROOT_S = "uid 65532 may not enter /root, a home directory of the image"
NOT_RUN = "uid 65532 cannot run a program that is below a home directory of the image, such as /root/miniconda3, or links to it"
NOT_FOUND = "uid 65532 does not find packages in a home directory of the image, such as those of pip install --user"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ('exec: "/root/miniconda3/bin/python": stat /root/miniconda3/bin/python: permission denied', ROOT_S),
        ('chdir to cwd ("/root/app") set in config.json failed: permission denied', ROOT_S),
        ("python: can't open file '/root/train.py': [Errno 13] Permission denied", ROOT_S),
        ("sh: 1: /home/user.name/run.sh: Permission denied", ROOT_S.replace("/root", "/home/user.name")),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface'", ROOT_S),
        ('exec: "/opt/venv/bin/python3.12": stat /opt/venv/bin/python3.12: permission denied', NOT_RUN),
        ('exec: "python": executable file not found in $PATH', NOT_RUN),
        ('exec: "torchrun": executable file not found in $PATH: unknown', NOT_RUN),
        ("exec /opt/bin/torchrun: permission denied", NOT_RUN),
        ("ModuleNotFoundError: No module named 'transformers'", NOT_FOUND),
        ("/usr/bin/python3: No module named torch", NOT_FOUND),
    ],
)
def test_what_the_user_of_the_pod_cannot_read_below_a_home_directory_is_explained(error: str, why: str) -> None:
    elsewhere = "or install it where all users can read it, such as /opt"
    assert hint_for(error, UID_65532, program().spec) == f"{why}: {OTHER_USER}, {elsewhere}"
    as_1000 = hint_for(error, Security(uid=1000, read_only_root=False), BASELINE.spec)
    assert as_1000 == f"{why.replace('65532', '1000')}: set runAsUser in spec.template, {elsewhere}"
    assert "home directory of the image" not in hint_for(error, IMAGE_USER, BASELINE.spec), "the user whose home it is"


@pytest.mark.parametrize(
    "error",
    [
        'exec: "trian.py": executable file not found in $PATH',
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/data'",
        "PermissionError: [Errno 13] Permission denied: '/rootfs/x'",
        "PermissionError: [Errno 13] Permission denied: '/home/ddpjob/x'",
    ],
)
def test_no_home_directory_is_blamed_for_other_errors(error: str) -> None:
    assert "home directory of the image" not in hint_for(error, UID_65532, program().spec)
    assert "home directory of the image" not in hint_for(
        "ModuleNotFoundError: No module named 'a'", UID_65532, job().spec
    )


def test_a_program_that_cannot_be_started_has_the_hint() -> None:
    said = 'runc create failed: unable to start container process: exec: "python": executable file not found in $PATH'
    of = program()
    seen = broken(of, replace(ended(of, 0, code=128, reason="StartError", message=said), security=UID_65532))
    assert NOT_RUN in plan(seen, NOW).status.failure.message
