"""restart.spares: pods that wait with everything imported, and which of them replaces which lost pod."""

from dataclasses import replace

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Phase, ProviderName, Reason, contract
from ddpjob_operator.core.model import NO_LOG, Deletion, Rejection, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.spare_pods import RETRY_SECONDS
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from support.builders import (
    NOW,
    created,
    deleted,
    edited,
    ended,
    environment,
    job,
    observed,
    pods_created,
    reconciled,
    supervised,
    updated,
)
from support.gangs_in_place import LATER
from support.gangs_with_spares import JOB, RESTART, after_loss, deletions, gang, spare, without_spares

PROBE = {"exec": {"command": ["true"]}}


def test_a_spare_pod_is_created_once_the_gang_runs_and_not_again() -> None:
    assert created(plan(observed(JOB), NOW)) == ["job-1-0", "job-1-1", "job-1-2"]
    seen = gang()
    assert created(plan(seen, NOW)) == ["job-1-spare0-0"]
    waiting = Waiting(reason="Unschedulable", message="0/3 nodes are available")
    pending = spare(running=False, is_started=False, node=None, phase="Pending", waiting=waiting)
    made = plan(gang(spares=(pending,)), NOW)
    assert (made.actions, made.status.phase, made.status.ready) == ((), Phase.RUNNING, "3/3")
    assert "0 of 1 spare pods can replace a lost pod (0/3 nodes are available)" in made.status.message
    assert "; 1 of 1 spare pods can replace a lost pod" in plan(gang(spares=(spare(),)), NOW).status.message


def test_for_the_scheduler_it_is_a_pod_of_a_rank_and_it_has_none() -> None:
    of = job(
        nodes=2,
        gpusPerNode=8,
        restart=RESTART,
        template={"spec": {"containers": [{"name": "trainer", "livenessProbe": PROBE, "readinessProbe": PROBE}]}},
    )
    (rank0, *_) = [action.body for action in pods_created(plan(observed(of), NOW))]
    (body,) = [action.body for action in pods_created(plan(gang(of), NOW))]
    main, of_rank = body["spec"]["containers"][0], rank0["spec"]["containers"][0]
    assert (main["resources"], main["command"], main["image"]) == (
        of_rank["resources"],
        of_rank["command"],
        of_rank["image"],
    )
    assert body["metadata"]["labels"] == rank0["metadata"]["labels"] | {
        names.LABEL_SPARE: "true",
        names.LABEL_RANK: "2",
    }
    variables = environment(body)
    assert {variables[name] for name in (contract.RANK, contract.NODE_RANK, contract.PET_NODE_RANK)} == {"unassigned"}
    (volume,) = (volume for volume in body["spec"]["volumes"] if "downwardAPI" in volume)
    (mount,) = (mount for mount in main["volumeMounts"] if mount["name"] == volume["name"])
    (item,) = volume["downwardAPI"]["items"]
    assert variables[contract.DDPJOB_SPARE_ASSIGNMENT] == f"{mount['mountPath']}/{item['path']}"
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.ANNOTATION_ASSIGNMENT}']"
    assert main["startupProbe"]["exec"]["command"] == ["cat", variables[contract.DDPJOB_SPARE_READY]]
    for probe in ("livenessProbe", "readinessProbe"):
        assert probe in of_rank
        assert probe not in main


def test_in_the_network_of_the_node_it_asks_for_the_port_of_rank_0_which_it_may_become() -> None:
    of = job(nodes=2, restart=RESTART, template={"spec": {"hostNetwork": True}})
    (rank0, *_) = [action.body for action in pods_created(plan(observed(of), NOW))]
    (body,) = [action.body for action in pods_created(plan(gang(of), NOW))]
    assert body["spec"]["containers"][0]["ports"] == rank0["spec"]["containers"][0]["ports"]


def test_a_spare_pod_gives_way_to_a_rank_that_finds_no_node() -> None:
    imports = reconciled(gang(JOB, (spare(is_started=False),), (1,)), LATER)
    refused = Waiting(reason="Unschedulable", message="0/4 nodes are available")
    new = supervised(imports.job, 1, node=None, running=False, phase="Pending", waiting=refused)
    others = [replace(pod, placed=NOW) for pod in without_spares(imports).pods]
    assert deletions(replace(imports, pods=(*others, new, spare())), LATER + 1) == ["job-1-spare0-0"]


def test_a_spare_pod_whose_node_does_not_respond_is_kept_since_the_node_may_respond_again() -> None:
    made = plan(gang(spares=(spare(is_cut_off=True),)), NOW)
    assert (made.actions, made.status.phase) == ((), Phase.RUNNING)
    assert (
        "0 of 1 spare pods can replace a lost pod (node spare-0 of pod job-1-spare0-0 is not ready)"
        in made.status.message
    )


def test_a_lost_spare_pod_is_created_again_and_counts_nowhere() -> None:
    seen = gang(spares=())
    made = plan(replace(seen, vanished=(spare(),)), LATER)
    assert created(made) == ["job-1-spare0-0"]
    assert (made.status.attempt, made.status.restarts.infrastructure) == (1, 0)


def test_a_spare_pod_whose_program_ends_is_replaced_after_a_while() -> None:
    """As one of an older release does, which knows of no spare pods."""
    failed = ended(
        JOB,
        3,
        code=2,
        message="RANK is 'unassigned'",
        name="job-1-spare0-0",
        uid="s",
        is_spare=True,
        is_supervised=True,
        placed=LATER,
        node="spare",
    )
    made = plan(gang(spares=(failed,)), LATER)
    assert (made.actions, made.status.attempt, made.status.phase) == ((), 1, Phase.RUNNING)
    assert "0 of 1 spare pods can replace a lost pod (pod job-1-spare0-0 ended with exit code 2: RANK is" in str(
        made.status.message
    )
    assert made.wake_at <= LATER + RETRY_SECONDS
    assert deletions(gang(spares=(failed,)), LATER + RETRY_SECONDS) == ["job-1-spare0-0"]


def test_the_object_of_a_spare_pod_is_removed_from_a_lost_node() -> None:
    on_lost = spare(deletion=Deletion(deadline=LATER - 100), disruption="DeletionByTaintManager: ")
    seen = gang(spares=(on_lost,))
    assert [lookup.name for lookup in plan(seen, LATER).lookups] == [on_lost.node]
    (deletion,) = plan(replace(seen, nodes_gone=frozenset({on_lost.node})), LATER).actions
    assert (deletion.name, deletion.grace_seconds) == (on_lost.name, 0)


@pytest.mark.parametrize(
    "seen",
    [
        edited(gang(spares=(spare(),)), restart=JOB.spec.restart.model_copy(update={"spares": 0})),
        edited(gang(spares=(spare(),)), restart=JOB.spec.restart.model_copy(update={"in_place": False})),
        updated(gang(spares=(spare(),)), shrunk_from=4),
        replace(gang(spares=(spare(),)), one_machine=True),
        gang(spares=(spare(), spare(name="job-1-spare0-1", uid="another"))),
    ],
    ids=["no longer wanted", "not in place", "fewer nodes than wanted", "one machine", "one too many"],
)
def test_a_spare_pod_that_helps_nobody_is_deleted(seen) -> None:
    assert len(deletions(seen)) == 1


def test_a_spare_pod_ends_with_the_job_and_the_other_pods_stay() -> None:
    seen = gang(spares=(spare(),))
    ranks = [ended(JOB, rank, is_supervised=True, ended_seen=LATER) for rank in range(3)]
    done = replace(seen, pods=(*ranks, spare()), logs={ranks[0].uid: NO_LOG})
    after = reconciled(done, LATER)
    assert after.job.status.phase == Phase.SUCCEEDED
    assert deletions(after) == ["job-1-spare0-0"]


def test_the_next_attempt_waits_until_it_has_stopped() -> None:
    """An operator with an old view may make it the pod of a rank until then."""
    seen = gang(spares=(spare(),))
    failed = ended(JOB, 1, code=1, message="ValueError: boom", is_supervised=True)
    seen = replace(seen, pods=(*(pod for pod in seen.pods if pod.rank != 1), failed))
    after = reconciled(seen, LATER)
    assert after.job.status.attempt == 2
    assert "job-1-spare0-0" in deletions(after)
    only = replace(after, pods=(failed, spare(deletion=Deletion(deadline=LATER))))
    assert created(plan(only, LATER)) == []
    assert len(created(plan(replace(only, pods=(failed,)), LATER))) == 3


def test_the_end_of_one_of_the_attempt_before_explains_no_failure() -> None:
    failed = ended(JOB, 1, code=69, message="rank 1 lost a peer", is_supervised=True, ended_seen=LATER)
    seen = gang()
    seen = replace(seen, pods=(*(pod for pod in seen.pods if pod.rank != 1), failed))
    after = reconciled(seen, LATER + 5)
    assert after.job.status.attempt == 2
    broken = ended(JOB, 3, code=2, message="config: wrong", name="job-1-spare0-0", is_spare=True, ended_seen=LATER)
    refined = reconciled(replace(after, pods=(*after.pods, broken)), LATER + 6)
    assert refined.job.status.failure.exit_code == 69


def test_under_a_scheduling_provider_there_is_none_and_the_status_says_so() -> None:
    provider = NativeV1Alpha2()
    pods = (supervised(JOB, rank, scheduling=ProviderName.NATIVE) for rank in range(3))
    seen = observed(JOB, *pods)
    made = plan(seen, NOW, provider)
    assert "job-1-spare0-0" not in created(made)
    assert (
        "restart.spares has no effect, since the scheduling provider is native"
        in plan(observed(JOB), NOW, provider).status.message
    )


def test_no_spare_pod_is_created_where_a_new_pod_would_not_wait_for_others() -> None:
    of = job(nodes=3, restart={**RESTART, "maxRestarts": 1})
    seen = gang(of)
    counted = seen.job.status.restarts.model_copy(update={"counted_times": ["2027-01-15T08:00:00Z"]})
    assert created(plan(updated(seen, restarts=counted), NOW)) == []


def test_a_record_shows_that_it_waits() -> None:
    (body,) = [action.body for action in pods_created(plan(gang(), NOW))]
    body = {**body, "metadata": {**body["metadata"], "uid": "s", "resourceVersion": "9"}}
    status = {"containerStatuses": [{"name": names.MAIN_CONTAINER, "started": True, "state": {"running": {}}}]}
    pod = pod_of({**body, "spec": {**body["spec"], "nodeName": "node-9"}, "status": status})
    assert (pod.is_spare, pod.is_started, pod.version, pod.is_rank) == (True, True, "9", False)


QUOTA = Rejection(message='pods "job-1-spare0-0" is forbidden: exceeded quota: team, requested: pods=1')


def test_a_spare_pod_that_a_quota_refuses_is_named_while_the_gang_runs_and_holds_up_nothing() -> None:
    refused = {"job-1-spare0-0": QUOTA}
    seen = replace(gang(), rejections=refused)
    made = plan(seen, NOW)
    assert (made.status.phase, made.status.ready) == (Phase.RUNNING, "3/3")
    assert "exceeded quota: team" in made.status.message
    lost = replace(reconciled(gang(lost=(1,)), LATER), rejections=refused)
    after = plan(lost, LATER + 1)
    assert created(after) == ["job-1-1-r1"]
    assert "quota" not in after.status.message


def test_the_next_one_waits_also_where_the_kubelet_has_refused_the_first() -> None:
    """As for a GPU that its plugin cannot give. The kubelet then replaces the status, with the condition of the scheduler."""
    (body,) = [action.body for action in pods_created(plan(gang(), NOW))]
    metadata = {**body["metadata"], "uid": "s", "resourceVersion": "9", "creationTimestamp": rfc3339(LATER - 1)}
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": rfc3339(LATER)}
    pod = pod_of({**body, "metadata": metadata, "spec": {**body["spec"], "nodeName": "node-9"}, "status": status})
    assert deletions(gang(spares=(pod,)), LATER + 1) == []
    assert "spare0-0 is Failed: UnexpectedAdmissionError" in str(plan(gang(spares=(pod,)), LATER).status.message)
    assert deletions(gang(spares=(pod,)), LATER + RETRY_SECONDS) == ["job-1-spare0-0"]


def test_a_spare_pod_that_may_not_take_over_is_named_as_what_the_gang_waits_for() -> None:
    """A policy of the cluster may forbid to change the labels of pods."""
    forbidden = Rejection(message="labels of pods are immutable here", request="update Pod")
    seen = replace(after_loss(1), rejections={"job-1-spare0-0": forbidden})
    made = plan(seen, LATER + 1)
    assert made.status.reason == Reason.POD_REJECTED
    assert "update Pod job-1-spare0-0: labels of pods are immutable here" in made.status.message


def test_a_spare_pod_stops_with_a_job_that_is_suspended_while_no_pod_of_a_rank_is_left() -> None:
    of = job(nodes=2, restart=RESTART)
    replaced = after_loss(1, of=of, spares=())
    seen = edited(replace(replaced, pods=(spare(of),)), suspend=True)
    after = reconciled(seen, LATER + 1)
    assert after.job.status.phase == Phase.SUSPENDED
    assert deleted(plan(after, LATER + 1)) == {"job-1-spare0-0": None}


def test_a_template_without_mounts_gets_that_of_the_assignment() -> None:
    containers = [{"name": "trainer", "volumeMounts": None}]
    of = job(nodes=3, restart=RESTART, template={"spec": {"containers": containers}})
    (body,) = [action.body for action in pods_created(plan(gang(of), NOW))]
    assert [mount["mountPath"] for mount in body["spec"]["containers"][0]["volumeMounts"]] == ["/ddpjob-spare"]
