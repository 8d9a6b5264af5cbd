"""What a user can do about each reason: shown by `ddpjob explain` and in the troubleshooting page."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ddpjob_operator.api.names import Reason

_RESOURCES = "Free or add nodes, or ask for less: `gpusPerNode`, `resources`, `nodes`. Check selectors, affinity and tolerations in `template`."
_CLUSTER = (
    "Nothing: the cluster caused it, the restart does not count, and training continues from the newest checkpoint."
)
_START = "Correct what the message names; the gang restarts by itself and then starts."

#: One sentence or two, in Markdown. `NAME` is replaced by the job's name.
ADVICE: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.CREATING: "Wait: the operator is creating the pods.",
        Reason.STARTING: "Wait: images are pulled and containers are started. `deadlines.startSeconds` limits this.",
        Reason.STOPPING: "Wait: pods of an earlier attempt, or of an earlier job of this name, are still stopping.",
        Reason.BACKING_OFF: "Wait: the next attempt starts after the back-off. Until then you can correct the cause of the last failure.",
        Reason.RUNNING: "Nothing: the job trains.",
        Reason.RESTARTED_IN_PLACE: "Read the log of the rank that the event names, `ddpjob logs NAME`: training continued, and such restarts count.",
        Reason.FINISHING: "Wait: some ranks have succeeded and the others are about to. `deadlines.finishSeconds` limits this.",
        Reason.SUSPENDED: "Set `spec.suspend` to false, or run `ddpjob resume NAME`.",
        Reason.SUCCEEDED: "Nothing: all ranks have ended with exit code 0.",
        Reason.SPEC_CHANGED: "Wait: the gang restarts with the changed spec.",
        Reason.RESIZED: "Wait: the gang saves its work and continues with the new number of nodes.",
        Reason.PROGRAM_ERROR: "Read the exception and the log of the rank that failed: `ddpjob logs NAME --failed`.",
        Reason.INIT_FAILED: "Correct the init container that the message names; its log is shown by `kubectl logs POD -c CONTAINER`.",
        Reason.BAD_COMMAND: "Correct `command`: it is a list of arguments without a shell, and the program must be in the image and executable. A script must exist at that path in each pod: copy it into the image, mount it, or let `ddpjob run` send it.",
        Reason.BAD_CONFIG: "Correct what the message names (install a missing module in the image), then delete and apply the job: another attempt would end in the same way.",
        Reason.OUT_OF_MEMORY: "Raise `resources.limits.memory` (shared memory counts against it), use a smaller batch or fewer data-loader workers, each of which has memory of its own; for GPU memory, a smaller batch.",
        Reason.KILLED: "Find out who sent the signal: signal 9 is often the node's out-of-memory killer (look at the node's kernel log), signal 11 a crash in a library.",
        Reason.COLLECTIVE_TIMEOUT: "If all ranks wait, check the network: policies and firewalls between the nodes, `NCCL_SOCKET_IFNAME`. If one rank is slow, raise the time-out of `init_process_group`.",
        Reason.COLLECTIVE_ERROR: "If the message names a rank that ended with exit code 0, let all ranks take the same number of steps. Otherwise look for the rank that ended first; if none did, check the network between the nodes.",
        Reason.HUNG: "Read the stacks in the log of the rank that is named, or `ddpjob stacks NAME` while it runs: the built-in trainer and sessions write them. In a program of your own, call `faulthandler.dump_traceback_later`, or use py-spy. A rank in data waits for storage; a rank in a collective waits for another rank.",
        Reason.IMAGE_PULL: "Check the name and the tag of the image, and that the namespace has the registry's pull secret.",
        Reason.CONTAINER_CONFIG: _START,
        Reason.POD_DEADLINE: "Remove `template.spec.activeDeadlineSeconds`, or raise it: for the whole job, use `deadlines.activeSeconds`.",
        Reason.REMOVAL_REJECTED: "Find out which admission webhook or policy refuses the request that the message shows; the operator repeats it.",
        Reason.OPERATOR_DEFECT: "Report the traceback, which is in the operator's log next to the name of the job. Until the defect is fixed, the operator does not react when the pods of the job end.",
        Reason.START_DEADLINE: "Look at the events of the pods: `ddpjob events NAME`. If the pods need more time to start, raise `deadlines.startSeconds`.",
        Reason.FINISH_DEADLINE: "Find out why some ranks continue after others have ended: all ranks must take the same number of steps.",
        Reason.POD_DELETED: "Find out who deletes pods (look in the audit log of the API server); the restart does not count.",
        Reason.STORAGE_LIMIT: "Raise the limit that the message names: `resources.limits.ephemeral-storage`, or `sizeLimit` of the volume in `template`; or write less to the pod's own disk.",
        Reason.EVICTED: _CLUSTER + " If it happens often, raise requests to what the pods use.",
        Reason.PREEMPTED: _CLUSTER + " If it happens often, use a higher priority class.",
        Reason.NODE_DRAINED: _CLUSTER,
        Reason.NODE_LOST: _CLUSTER + " If the same node is named again, take it out of service.",
        Reason.POD_DISRUPTED: _CLUSTER,
        Reason.STOPPED_WITH_CHECKPOINT: "Nothing: the program saved a checkpoint when it was asked to stop, and the next attempt continues from it.",
        Reason.UNSCHEDULABLE: _RESOURCES + " Wait if the message says that an autoscaler adds nodes.",
        Reason.QUEUED: "Wait for the jobs that the message names, ask for less, use another queue (`scheduling.queueName`) or a higher priority (`scheduling.priorityClassName`).",
        Reason.QUOTA_EXCEEDED: "Wait until other pods of the namespace end, ask for less, or have the quota raised.",
        Reason.POD_REJECTED: "Correct `template`, or what the namespace's admission asks for: pod security level, policies, limit ranges. The message names the rule.",
        Reason.GANG_GIVEN_BACK: "Wait: only some pods found nodes, so all pods were deleted to free these nodes. The job tries again later. "
        + _RESOURCES,
        Reason.TERMINATING_TOO_LONG: "Restart the kubelet of the node that is named, or, if the node is gone, taint it `node.kubernetes.io/out-of-service`.",
        Reason.QUEUE_DEADLINE: _RESOURCES + " Or raise `deadlines.queueSeconds`.",
        Reason.ACTIVE_DEADLINE: "Raise `deadlines.activeSeconds`, or train for fewer steps.",
        Reason.INVALID_SPEC: "Correct the field that is named, then delete and apply the job.",
        Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS: "Find out what ends the pods, and save checkpoints more often: progress resets the count.",
    }
)


def table() -> str:
    """All reasons with what to do, as a Markdown table."""
    rows = ["| reason | what to do |", "| --- | --- |"]
    rows += (f"| {reason} | {text} |" for reason, text in sorted(ADVICE.items()))
    return "\n".join(rows)
