"""`ddpjob explain` names the cause, shows the evidence and says what to do."""

from typing import Any, NoReturn, cast

import pytest

from ddpjob.client import Client, ForbiddenError
from ddpjob.client.jobs import Job, read_event, read_job, read_pod
from ddpjob.client.logs import LogLine
from ddpjob_cli.events import events_if_allowed
from ddpjob_cli.explanation import explained
from ddpjob_cli.local_runs import ANNOTATION
from ddpjob_cli.rendering import address, message_of
from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.failure.classes import CLASSES
from ddpjob_operator.reference.advice import ADVICE
from ddpjob_operator.reference.remedies import REMEDIES, Remedy, remedy_for

TIME = "2026-11-22T10:00:00Z"
FAILURE = {"attempt": 2, "rank": 1, "pod": "net-2-1", "node": "gpu-3", "exitCode": 1, "time": TIME}


def job(**status: Any) -> Job:
    metadata = {"name": "net", "namespace": "team-a", "uid": "u", "resourceVersion": "1", "creationTimestamp": TIME}
    return read_job({"metadata": metadata, "spec": {"nodes": 2, "trainer": {"recipe": "digits"}}, "status": status})


def sections(*arguments: Any) -> dict[str, str]:
    return {section.title: "\n".join(section.lines) for section in explained(*arguments)}


def test_every_reason_has_advice() -> None:
    assert set(ADVICE) == set(Reason)
    assert {row.reason for row in CLASSES} <= set(ADVICE)


@pytest.mark.parametrize("row", REMEDIES, ids=lambda row: row.pattern[:20])
def test_each_row_of_the_remedies_is_the_first_that_matches_its_example(row: Remedy) -> None:
    assert remedy_for(row.example) == row.advice


@pytest.mark.parametrize(
    ("reason", "message", "advice"),
    [
        ("BadConfig", "ModuleNotFoundError: No module named 'x'", "Install the package where the program runs"),
        (
            "ProgramError",
            "ValueError: label 12",
            "Read the exception and the log of the rank that failed:",
        ),
        (
            "BadCommand",
            r"python: can't open file '/w/train.py\r': [Errno 2] No such file",
            "Save the script with the line ends",
        ),
        ("BadCommand", "bash: torchrun: command not found", "The image has no such program"),
        (
            "ProgramError",
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 161 params, while rank 0 has inconsistent 0 params.",
            "Build the same",
        ),
        (
            "ProgramError",
            "RuntimeError: [1]: params[0] in this process with sizes [4] appears not to match sizes of the same param",
            "Build the same model",
        ),
        ("ProgramError", "RuntimeError: Expected to mark a variable ready only once.", "A parameter was used twice"),
        ("ProgramError", "RuntimeError: Detected mismatch between collectives on ranks.", "Each rank must call"),
        (
            "ProgramError",
            "wandb.errors.UsageError: api_key not configured (no-tty).",
            "Give the program its credentials",
        ),
        ("ProgramError", "OSError: You are trying to access a gated repo.", "Give the program its credentials"),
        ("ProgramError", "RuntimeError: Cannot re-initialize CUDA in forked subprocess.", "Use no GPU before"),
        (
            "ProgramError",
            "RuntimeError: An attempt has been made to start a new process before the",
            "Start the training",
        ),
        ("ProgramError", "RuntimeError: can't start new thread", "The pod has as many processes"),
        ("ProgramError", "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64", "The pod has as many"),
        (
            "ProgramError",
            "RuntimeError: DataLoader worker (pid 2) is killed by signal: Segmentation fault.",
            "Run once",
        ),
        (
            "ProgramError",
            "HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://x",
            "The host limits requests",
        ),
        ("ProgramError", "OSError: We couldn't connect to 'https://huggingface.co' to load", "Pods may have no way"),
        (
            "ProgramError",
            "InductorError: RuntimeError: Failed to find C compiler.",
            "torch.compile needs a C compiler",
        ),
        ("ProgramError", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "The GPU reports a fault"),
        (
            "ProgramError",
            "google.api_core.exceptions.Forbidden: 403 GET https://storage",
            "Give the program its credentials",
        ),
        ("ProgramError", "urllib.error.HTTPError: HTTP Error 403: Forbidden", "Give the program its credentials"),
        ("ProgramError", "ValueError: expected 403 samples, found 401 of them", "Read the exception"),
        ("BadCommand", "sh: 1: torchrun: not found", "The image has no such program"),
        ("ProgramError", "", "The program printed nothing before it ended"),
        ("Evicted", "Permission denied", "Nothing: the cluster caused it"),
    ],
)
def test_what_to_do_follows_from_the_error_of_the_program(reason: str, message: str, advice: str) -> None:
    failed = job(phase="Failed", reason=reason, attempt=2, failure={**FAILURE, "reason": reason, "message": message})
    assert sections(failed, [])["What to do"].startswith(advice)


def test_a_failed_job_is_explained_by_its_failure() -> None:
    failure = {**FAILURE, "reason": "ProgramError", "message": "ValueError: label \x1b[31m12"}
    failed = job(
        phase="Failed",
        reason="ProgramError",
        message="no restarts are left",
        attempt=2,
        failure=failure,
        conditions=[{"type": "Failed", "status": "True", "reason": "x", "message": "", "lastTransitionTime": TIME}],
    )
    line = LogLine(attempt=2, rank=1, pod="net-2-1", node="gpu-3", time=TIME, text="ValueError: label 12")
    about = {"kind": "DDPJob", "name": "net"}
    event = {"type": "Warning", "reason": "ProgramError", "message": "no restarts are left", "involvedObject": about}
    shown = sections(failed, [], [read_event({"metadata": {}, **event})], [line])

    assert "Warnings" not in shown, "the event repeats the status"
    assert shown["What happened"] == "team-a/net is Failed (ProgramError) in attempt 2: no restarts are left"
    assert "rank: 1\npod: net-2-1\nnode: gpu-3\nexit code: 1" in shown["Last failure"]
    assert "\x1b" not in shown["Last failure"], "a message of a program is hostile input"
    assert "consequence" not in shown["Last failure"], "nothing follows from the failure that ended the job"
    assert shown["Last lines of net-2-1"] == "ValueError: label 12"
    assert shown["What to do"].endswith("ddpjob logs net -n team-a --failed"), "a command ends without a full stop"


def test_a_local_run_is_named_by_its_directory() -> None:
    failure = {**FAILURE, "reason": "BadConfig", "message": "config: epochs is -3"}
    failed = job(phase="Failed", reason="BadConfig", attempt=2, failure=failure)
    metadata = {**failed.body["metadata"], "annotations": {ANNOTATION: ".ddpjob/runs/net"}}
    local = read_job({**failed.body, "metadata": metadata})
    assert "then delete and apply the job" in sections(failed, [], [])["What to do"]
    assert "then run the job again" in sections(local, [], [])["What to do"]
    assert (address(failed), address(local)) == ("net -n team-a", ".ddpjob/runs/net")


def test_events_that_the_user_may_not_list_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    class Denied:
        def events(self, name: str, *, namespace: str) -> NoReturn:
            raise ForbiddenError(f"{name}: you may not", verb="list", resource="events", namespace=namespace)

    assert events_if_allowed(cast("Client", Denied()), job()) == []
    assert "net: you may not" in capsys.readouterr().err


def test_a_reason_that_repeats_the_phase_is_left_out() -> None:
    shown = sections(job(phase="Running", reason="Running", message="all 2 pods run", attempt=1))
    assert shown["What happens"] == "team-a/net is Running in attempt 1: all 2 pods run"


def test_the_attempt_is_named_once() -> None:
    shown = sections(job(phase="Failed", reason="ProgramError", message="Rank 1 failed in attempt 1", attempt=1))
    assert shown["What happens"] == "team-a/net is Failed (ProgramError): Rank 1 failed in attempt 1"


def test_a_waiting_job_is_explained_by_its_pods_and_warnings() -> None:
    waiting = job(phase="Pending", reason="ImagePull", message="2 of 2 pods wait")
    labels = {"ddpjob.dev/attempt": "1", "ddpjob.dev/rank": "0"}
    container = {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    pod = read_pod({"metadata": {"name": "net-1-0", "labels": labels}, "status": {"containerStatuses": [container]}})
    about = {"involvedObject": {"kind": "Pod", "name": "net-1-0"}, "metadata": {}}
    warning = {"type": "Warning", "reason": "Failed", "message": "no such image", **about}
    shown = sections(waiting, [pod], [read_event(warning), read_event({**warning, "type": "Normal", "reason": "x"})])

    assert shown["Pods that do not run"] == "node rank 0 (net-1-0): ImagePullBackOff: not found"
    assert shown["Warnings"] == "Pod/net-1-0: Failed: no such image"
    assert "pull secret" in shown["What to do"]


def test_a_pod_that_was_replaced_is_none_that_does_not_run() -> None:
    """It stays as evidence, and status.failure explains it."""
    labels = {"ddpjob.dev/attempt": "1", "ddpjob.dev/rank": "1"}
    lost = read_pod({"metadata": {"name": "net-1-1", "labels": labels}, "status": {"phase": "Failed"}})
    running = job(phase="Running", attempt=1, replacedPods=[{"rank": 1, "replacement": 1}])
    assert "Pods that do not run" not in sections(running, [lost])
    assert "Pods that do not run" in sections(job(phase="Running", attempt=1), [lost])


def test_the_message_of_a_rank_that_lost_a_peer_has_its_parts_separated() -> None:
    labels = {"ddpjob.dev/attempt": "1", "ddpjob.dev/rank": "0"}
    ended = {"exitCode": 69, "reason": "Error", "message": "rank 0 lost a peer\nrank 1 ended: no memory"}
    container = {"name": "trainer", "state": {"terminated": ended}}
    pod = read_pod({"metadata": {"name": "net-1-0", "labels": labels}, "status": {"containerStatuses": [container]}})
    assert pod is not None
    assert pod.message == "rank 0 lost a peer: rank 1 ended: no memory"


def ended(exit_code: int, said: str, **status: str) -> Any:
    """The pod of rank 0 in attempt 2, whose program has ended."""
    labels = {"ddpjob.dev/attempt": "2", "ddpjob.dev/rank": "0"}
    state = {"terminated": {"exitCode": exit_code, "reason": "Error", "message": said}}
    containers = [{"name": "trainer", "state": state}]
    body = {"metadata": {"name": "net-2-0", "labels": labels}, "status": {"containerStatuses": containers, **status}}
    return read_pod(body)


PROGRESS = "step 0\nstep 1\nstep 2"
DEADLINE = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
OF_RANK_1 = {**FAILURE, "reason": "ProgramError"}
BECAUSE = "stopped because of a rank of net-2-1 (ProgramError)"


@pytest.mark.parametrize(
    ("attempts", "pod", "said"),
    [
        ([OF_RANK_1], ended(143, PROGRESS), BECAUSE),
        ([OF_RANK_1], ended(143, PROGRESS, **DEADLINE), BECAUSE),
        ([OF_RANK_1], ended(143, "Traceback (most recent call last):\nValueError: late"), "ValueError: late"),
        ([{**OF_RANK_1, "attempt": 1}], ended(143, PROGRESS), "stopped on request (SIGTERM)"),
        ([{**OF_RANK_1, "replaced": True}], ended(143, PROGRESS), "stopped on request (SIGTERM)"),
        ([{**OF_RANK_1, "rank": 0}], ended(143, PROGRESS), "stopped on request (SIGTERM)"),
        (
            [OF_RANK_1],
            ended(143, "", reason="Evicted", message="the node was low on memory"),
            "the node was low on memory",
        ),
        ([OF_RANK_1], ended(1, "bad luck"), "bad luck"),
    ],
)
def test_a_rank_that_was_stopped_says_why_and_not_what_it_printed_last(attempts: Any, pod: Any, said: str) -> None:
    assert message_of(job(phase="Failed", attempt=2, attempts=attempts), pod) == said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "ddpjob doctor"),
        ({"phase": "Pending", "reason": "FromTheFuture"}, "ddpjob events net -n team-a"),
        ({"phase": "Restarting", "reason": "BackingOff", "failure": {**FAILURE, "reason": "OutOfMemory"}}, "smaller batch"),
    ],
)  # fmt: skip
def test_there_is_always_a_next_step(status: dict[str, Any], said: str) -> None:
    assert said in "\n".join("\n".join(section.lines) for section in explained(job(**status)))
