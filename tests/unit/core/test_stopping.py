"""What stops pods: each way ends in a deletion, and only this process's clock decides when."""

from dataclasses import replace

from ddpjob_operator.core.actions import DeletePod, LowerPodDeadline, ReadNode
from ddpjob_operator.core.gang import gang_of
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.stopping import OVERDUE_SECONDS, node_lookups, stop, stop_and_keep_logs
from support.builders import NOW, changed, edited, ended, job, observed, pending, pod, program, reconciled, running

OF = job(nodes=1)
WITH_SIDECAR = ended(OF, 0, all_ended=False, ended_seen=NOW)
LOWER = (LowerPodDeadline(name="job-1-0", uid="pod-uid-1-0"),)


def test_the_clock_of_a_node_does_not_decide_when_evidence_is_deleted_or_when_a_rank_succeeded() -> None:
    behind = changed(WITH_SIDECAR, exit=replace(WITH_SIDECAR.exit, finished=NOW - 90))
    seen = observed(program(nodes=1), behind)
    assert stop(seen, [behind], 1, NOW) == LOWER
    assert gang_of(seen, 1).first_success == NOW


def test_a_survivor_without_a_node_is_deleted_only_in_that_version_since_it_may_have_got_a_node() -> None:
    """An operator that saw pods late deleted a running survivor of a failed job, and its log with it."""
    unplaced = pending(OF, version="7")
    delete = DeletePod(name="job-1-0", uid="pod-uid-1-0", grace_seconds=None, resource_version="7")
    assert stop_and_keep_logs(observed(OF, unplaced), [unplaced], NOW, NOW) == (delete,)
    placed = pending(OF, node="node-0")
    assert stop_and_keep_logs(observed(OF, placed), [placed], NOW, NOW) == LOWER


def test_the_object_of_an_ended_pod_on_a_lost_node_is_removed() -> None:
    gone = ended(OF, 0, deletion_deadline=NOW - OVERDUE_SECONDS)
    seen = observed(OF, gone, nodes_gone=frozenset({"node-0"}))
    assert node_lookups(OF.status, [gone], NOW) == (ReadNode(name="node-0"),)
    assert stop(seen, [gone], None, NOW) == (DeletePod(name="job-1-0", uid="pod-uid-1-0", grace_seconds=0),)


def test_a_survivor_that_its_kubelet_is_about_to_remove_needs_no_lookup_of_its_node() -> None:
    assert node_lookups(OF.status, [pod(OF, 0, deletion_deadline=NOW - 3)], NOW) == ()


def test_the_node_of_an_evicted_pod_is_looked_up_only_while_the_failure_may_still_change() -> None:
    evicted = ended(OF, 0, code=143, disruption="EvictionByEvictionAPI: Eviction API: evicting")
    seen = replace(running(OF), pods=(evicted,))
    restarting = reconciled(seen)
    runs = replace(restarting, pods=(evicted, pod(OF, 0, 2)))
    suspended = reconciled(edited(restarting, suspend=True))
    lookups = [plan(moment, NOW).lookups for moment in (seen, restarting, runs, suspended)]
    assert lookups == [(ReadNode(name="node-0"),), (ReadNode(name="node-0"),), (), ()]
