"""Objects of the API server as records, whatever they hold."""

import json
import sys

import pytest

from ddpjob_operator.api.names import MAX_NODES, ConditionType
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import job_of, pod_of
from ddpjob_operator.core.render.pods import create_pod, spec_hash

LABELS = {"ddpjob.dev/job-uid": "u", "ddpjob.dev/attempt": "2", "ddpjob.dev/rank": "1"}
OWNER = {"kind": "DDPJob", "uid": "u", "controller": True}


def pod(status=None, labels=LABELS, owners=(OWNER,), **spec):
    return {
        "metadata": {"name": "job-2-1", "uid": "p", "labels": labels, "ownerReferences": list(owners)},
        "spec": {"containers": [{"name": "trainer"}], **spec},
        "status": status or {},
    }


def container(state, name="trainer"):
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    "body",
    [
        pod(labels={}),
        pod(labels=LABELS | {"ddpjob.dev/rank": "one"}),
        pod(labels=LABELS | {"ddpjob.dev/attempt": ""}),
        pod(owners=()),
        pod(owners=({"kind": "DDPJob", "uid": "other", "controller": True},)),
        pod(owners=({"kind": "Job", "uid": "u", "controller": True},)),
    ],
)
def test_a_pod_that_is_not_ours_is_refused(body) -> None:
    with pytest.raises(ValueError, match=r"pod|label"):
        pod_of(body)


def test_the_main_containers_end_shows_before_the_phase() -> None:
    ended = container({"terminated": {"exitCode": 137, "reason": "Error", "message": "bye\n"}})
    record = pod_of(pod({"phase": "Running", "containerStatuses": [ended]}, nodeName="n"))
    assert (record.exit.code, record.exit.signal, record.exit.message, record.all_ended) == (137, 9, "bye", True)


def test_a_pod_with_scheduling_gates_names_them() -> None:
    message = "Scheduling is blocked due to non-empty scheduling gates"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    gates = [{"name": "example.com/quota"}, {"name": "example.com/net"}]
    body = pod({"conditions": [condition]}, schedulingGates=gates)
    assert pod_of(body).waiting.message == "held by scheduling gates: example.com/quota, example.com/net"


RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize("own", [{"restartPolicyRules": [RULE]}, {"restartPolicy": "Always"}], ids=["rules", "policy"])
def test_a_program_that_the_kubelet_may_start_again_has_stopped_only_when_its_pod_is_over(own) -> None:
    """Otherwise the next attempt would start while the kubelet restarts the program in a pod of this one."""
    ended = [container({"terminated": {"exitCode": 42}})]
    body = pod({"phase": "Running", "containerStatuses": ended}, nodeName="n")
    body["spec"]["containers"] = [{"name": "trainer", **own}]
    record = pod_of(body)
    assert (record.exit.code, record.all_ended) == (42, False)
    body["status"]["phase"] = "Failed"
    assert pod_of(body).all_ended


MAIN_RUNS = container({"running": {}})
MAIN_WAITS = container({"waiting": {"reason": "PodInitializing"}})
CRASHED = {"terminated": {"exitCode": 1}}
BACKING_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}


def with_init(state, main, phase="Running", **init):
    """A pod with an init container `proxy` in this state; `init` are further fields of its spec."""
    status = {"phase": phase, "containerStatuses": [main], "initContainerStatuses": [container(state, "proxy")]}
    return pod_of(pod(status, nodeName="n", initContainers=[{"name": "proxy", **init}]))


def test_a_native_sidecar_is_not_how_a_pod_ended_that_was_evicted_before_its_program_ran() -> None:
    assert with_init(CRASHED, MAIN_WAITS, phase="Failed", restartPolicy="Always").exit is None


@pytest.mark.parametrize("state", [CRASHED, BACKING_OFF])
def test_a_native_sidecar_that_crashes_is_not_the_end_of_a_pod_whose_program_runs(state) -> None:
    """Istio's proxy, GCS FUSE and Vault's agent run as such sidecars, and the kubelet restarts them."""
    record = with_init(state, MAIN_RUNS, restartPolicy="Always")
    assert (record.running, record.exit, record.all_ended, record.waiting) == (True, None, False, None)


def test_a_native_sidecar_that_keeps_the_program_from_starting_is_what_the_pod_waits_for() -> None:
    record = with_init(BACKING_OFF, MAIN_WAITS, phase="Pending", restartPolicy="Always")
    assert (record.exit, record.waiting.reason) == (None, "CrashLoopBackOff")


@pytest.mark.parametrize("init", [{"restartPolicy": "OnFailure"}, {"restartPolicyRules": [{"action": "Restart"}]}])
def test_an_init_container_that_the_kubelet_may_restart_has_failed_only_when_its_pod_has(init) -> None:
    assert with_init(CRASHED, MAIN_WAITS, phase="Pending", **init).exit is None
    assert with_init(CRASHED, MAIN_WAITS, phase="Failed", **init).exit is not None


def test_a_failed_init_container_ends_its_pod_before_the_phase_says_so() -> None:
    record = with_init({"terminated": {"exitCode": 3, "message": "no data"}}, MAIN_WAITS, phase="Pending")
    assert (record.exit.code, record.exit.message) == (3, "no data")


@pytest.mark.parametrize(("state", "all_ended"), [({"running": {}}, False), (CRASHED, True), (BACKING_OFF, True)])
def test_a_native_sidecar_is_not_restarted_after_the_program(state, all_ended) -> None:
    record = with_init(state, container({"terminated": {"exitCode": 0}}), restartPolicy="Always")
    assert (record.exit.code, record.all_ended) == (0, all_ended)


TIME = "2026-01-01T00:00:00Z"


def job(**status):
    metadata = {"namespace": "d", "name": "job", "uid": "u", "resourceVersion": "7", "creationTimestamp": TIME}
    return {"metadata": metadata, "spec": {"trainer": {"recipe": "digits"}}, "status": status}


def test_the_status_of_a_newer_operator_keeps_its_end() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "OfTheFuture", "lastTransitionTime": TIME}
    record = job_of(job(attempt=3, phase="Odd", reason="OfTheFuture", conditions=[failed], unknown=1))
    assert (record.status.attempt, record.status.finished) == (3, True)
    assert record.status.condition(ConditionType.FAILED)


def test_a_spec_that_cannot_be_read_has_an_error() -> None:
    body = job()
    body["spec"]["nodes"] = "many"
    record = job_of(body)
    assert record.spec is None
    assert record.spec_error.startswith("spec.nodes: ")


def test_one_field_that_a_newer_operator_writes_otherwise_loses_no_other() -> None:
    done = {"type": "Succeeded", "status": "True", "reason": "Succeeded", "lastTransitionTime": TIME}
    strange = {**done, "type": "Celebrating"}
    given = {"attempt": 7, "conditions": [strange, done], "restarts": {"counted": "many"}}
    read = job_of(job(**given)).status
    assert (read.attempt, read.finished, read.restarts.counted) == (7, True, 0)


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    "status",
    [
        {"replicas": HUGE},
        {"replicas": 0},
        {"replicas": -1, "shrunkFrom": HUGE, "readyReplicas": HUGE},
        {"attempt": HUGE},
        {"attempt": -HUGE},
        {"replacedPods": [{"rank": HUGE, "replacement": HUGE}, {"rank": -1, "replacement": -1}]},
        {"restarts": {"counted": -HUGE, "infrastructure": HUGE, "inARow": HUGE, "shortInARow": -1}},
        {"restarts": {"countedTimes": ["yesterday"], "infrastructureTimes": ["0000-00-00T00:00:00Z"]}},
        {"activeSecondsBefore": HUGE, "giveBacks": HUGE},
        *(
            {name: time}
            for name in ("startTime", "attemptStartTime", "retryTime", "queuedSince", "scheduledTime", "runningSince")
            for time in (
                "x",
                "2026-13-01T00:00:00Z",
                "2026-02-30T00:00:00Z",
                "0001-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
            )
        ),
        {
            "progress": {"step": HUGE, "checkpointStep": -1, "etaSeconds": HUGE},
            "checkpointTime": "2026-13-01T00:00:00Z",
        },
        {"time": {"queuedSeconds": HUGE, "trainingSeconds": -HUGE, "until": TIME}},
        {"failure": {"attempt": HUGE, "rank": HUGE, "reason": "x", "time": TIME}},
    ],
)
@pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting"])
def test_whatever_a_tenant_has_written_into_the_status_a_decision_is_made(status, phase) -> None:
    record = job_of(job(**{"phase": phase, "attempt": 2, **status}))
    decided = plan(Observed(job=record, pods=(), trainer_image="x"), 1_800_000_000.0)
    assert len(json.dumps([action.body for action in decided.actions if hasattr(action, "body")])) < 10**8


def test_a_number_of_the_status_beyond_its_bounds_counts_as_the_bound_and_nothing_else_is_lost() -> None:
    status = {"attempt": 2, "replicas": HUGE, "restarts": {"counted": -3, "inARow": 2, "furthestStep": HUGE}}
    read = job_of(job(**status)).status
    assert (read.attempt, read.replicas) == (2, MAX_NODES)
    assert (read.restarts.counted, read.restarts.in_a_row, read.restarts.furthest_step) == (0, 2, 2**53)


def test_a_status_of_megabytes_takes_little_memory() -> None:
    condition = {"type": "Created", "status": "True", "reason": "r" * 10**6, "lastTransitionTime": TIME}
    failure = {"attempt": 1, "reason": "x", "message": "m" * 10**4, "time": TIME}
    given = {
        "attempt": 3,
        "message": "m" * 10**6,
        "conditions": [condition],
        "attempts": [failure] * 2000,
        "restarts": {"counted": 5, "countedTimes": [TIME] * 100_000},
    }
    read = job_of(job(**given)).status
    assert (read.attempt, read.restarts.counted, read.condition(ConditionType.CREATED)) == (3, 5, True)
    assert len(json.dumps(read.as_json())) < 800_000


def test_the_template_of_a_user_is_read_whole_although_the_spec_has_a_newer_release_s_field() -> None:
    """Undeclared fields of the template were once dropped without a message: volumes, nodeSelector, priorityClassName."""
    container = {"name": "trainer", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
    overlay = {"nodeSelector": {"gpu": "a"}, "volumes": [{"name": "x", "emptyDir": {}}], "containers": [container]}
    spec = {"command": ["train"], "template": {"spec": overlay}, "deadlines": {"newer": 1}, "faster": True}
    read = job_of({**job(), "spec": spec})
    assert read.spec_error == ""
    body = create_pod(read, read.spec, "image", 0).body["spec"]
    assert body["nodeSelector"] == {"gpu": "a"}
    assert {"name": "x", "emptyDir": {}} in body["volumes"]
    assert body["containers"][0]["lifecycle"] == container["lifecycle"]


def test_a_newer_release_s_field_does_not_make_a_job_look_edited() -> None:
    old = {"command": ["train"], "template": {"spec": {"nodeSelector": {"gpu": "a"}}}}
    newer = {**old, "faster": True}
    assert spec_hash(job_of({**job(), "spec": newer}).spec) == spec_hash(job_of({**job(), "spec": old}).spec)


def test_a_mistake_is_reported_although_the_spec_has_a_newer_release_s_field() -> None:
    assert "spec.nodes" in job_of({**job(), "spec": {"command": ["train"], "nodes": 0, "faster": True}}).spec_error


@pytest.mark.parametrize("others", [{}, {"faster": True}], ids=["of this release", "with a newer release's field"])
def test_a_spec_that_is_nested_too_deeply_has_an_error(others) -> None:
    """One such manifest once made every reconcile of its job fail, with nothing in its status.

    With a field of a newer release it ended the process at each start.
    """
    deep: dict[str, object] = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"x": deep}
    read = job_of({**job(), "spec": {"command": ["train"], "data": {"volume": deep}, **others}})
    assert read.spec is None
    assert read.spec_error
