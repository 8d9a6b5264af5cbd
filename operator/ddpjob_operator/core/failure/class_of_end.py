"""The failure class of one rank's end, from what the cluster, the kubelet and the program report.

The most certain evidence comes first.
"""

import re
import signal
from collections.abc import Sequence

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.failure.log_parsing import (
    is_death_of_a_worker,
    is_echo,
    is_out_of_memory,
    is_out_of_shared_memory,
    is_stop_of_torchrun,
    is_timeout,
)
from ddpjob_operator.core.model import NO_LOG, Exit, LogEnd, Observed, Pod

#: Reason of the DisruptionTarget condition of an eviction through the API, which is also what a drain does.
EVICTION = "EvictionByEvictionAPI"
#: The kubelet's messages of an eviction that the pod itself has caused (pkg/kubelet/eviction/helpers.go and eviction_manager.go).
_OWN_STORAGE_LIMIT = re.compile(
    r"exceed(?:s|ed) the total limit of containers|exceeded its local ephemeral storage limit|EmptyDir volume .{1,253} exceeds the limit"
)
#: Begins the reason of Kueue's TerminationTarget condition.
QUEUE_EVICTION = "WorkloadEvicted"
#: What a pod's own reason means: the kubelet ended or refused it.
_POD_REASONS = {
    "Evicted": Reason.EVICTED,
    "Preempting": Reason.PREEMPTED,
    "NodeShutdown": Reason.NODE_DRAINED,
    "Terminated": Reason.NODE_DRAINED,
    "NodeAffinity": Reason.POD_DISRUPTED,
}
#: What the reason of a DisruptionTarget condition means
#: (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions), and that of Kueue's
#: TerminationTarget. Other reasons of Kueue are evictions as well, for example WorkloadEvictedDueToClusterQueueStopped.
_DISRUPTIONS = {
    "PreemptionByScheduler": Reason.PREEMPTED,
    EVICTION: Reason.EVICTED,
    "DeletionByPodGC": Reason.NODE_LOST,
    "WorkloadEvictedDueToPreempted": Reason.PREEMPTED,
}
#: The container runtime's reasons for a program that it could not start.
START_REASONS = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_NO_SUCH_PROGRAM = re.compile(r"executable file not found|no such file or directory|permission denied|is a directory")

#: The kubelet's reason for a pod whose activeDeadlineSeconds has passed, and the signals by which it ends the program.
DEADLINE_EXCEEDED = "DeadlineExceeded"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGKILL)

#: Exit codes of the trainer that say it all. Another program may mean anything by them.
_TRAINERS_CODES = {
    contract.EXIT_BAD_CONFIG: Reason.BAD_CONFIG,
    contract.EXIT_HUNG: Reason.HUNG,
    contract.EXIT_OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
}

#: A program that restarts as it is ends in the same way again: its script or module does not exist, is no Python, or
#: does not know its arguments. The interpreter, argparse, click, typer, absl, fire and Hydra say so in these words. A file
#: that does not exist may exist the next time.
_NO_SCRIPT = re.compile(r"\S*python\S*: (?:can't open file '|can't find '__main__' module in '|No module named )")
_NO_SHELL_SCRIPT = re.compile(r"\S*sh: (?:\d+: |line \d+: )?(?:cannot open )?(\S+): No such file")
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named |ImportError: cannot import name |(?:SyntaxError|IndentationError|TabError): "
)
_WRONG_ARGUMENTS = re.compile(
    r"(?!.{0,400}(?:does not exist|can't open|is not (?:read|writ)able))"
    r"(?:[^\s:]+: error: (?:argument |unrecognized arguments|the following arguments are required)"
    r"|(?:Error: )?(?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value for|Got unexpected extra arg)"
    r"|(?:FATAL Flags parsing error: )?Unknown command line flag |ERROR: Could not consume arg: |Key '[^']{0,200}' is not in struct$)"
)
#: Lightning without `num_nodes` has a world of one pod. Both are said by the ranks of other pods, the first by gloo.
OF_ONE_NODE = re.compile(r"rank < size\. \d+ vs \d+|num_nodes=1`? in Lightning")
#: Programs that start a script.
_INTERPRETERS = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate)$")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh$")
#: What a shell may do before it starts the script. Any other command, such as pip, could have failed at something that may work the
#: next time.
_PREPARATIONS = frozenset({"cd", "export", "set", "ulimit", "echo", "umask"})
#: Exit code of a shell that finds no such program or script.
_NOT_FOUND = 127

#: What a step number may be: longer digits are no step and would not fit into a status.
_SAVED_STEP = re.compile(rf"(?:^|\s){re.escape(contract.TERMINATION_CHECKPOINT_PREFIX)}(\d{{1,15}})(?:\s|$)")


def class_of_end(observed: Observed, pod: Pod, log: LogEnd, gang_has_saved: bool) -> Reason:
    """The class of an end, most certain evidence first.

    `gang_has_saved`: rank 0 of the pod's attempt reports a newly saved step.
    """
    if pod.exit is None and pod.node in observed.nodes_gone:
        return Reason.NODE_LOST
    if disruption := _class_of_disruption(observed, pod):
        return disruption
    if pod.deletion is not None and not pod.ended_before_deletion:
        return Reason.POD_DELETED
    stopped = pod.exit is not None and pod.exit.code == contract.EXIT_CHECKPOINTED and not pod.exit.init_container
    if stopped and gang_has_saved:
        return Reason.STOPPED_WITH_CHECKPOINT
    if pod.exit is None:  # the kubelet refused or ended the pod before its program ran
        return Reason.POD_DISRUPTED
    if pod.exit.init_container:
        return Reason.POD_DEADLINE if _ended_by_its_deadline(pod, pod.exit, "") else Reason.INIT_FAILED
    return _class_of_exit(observed, pod, log)


def said_by(spec: DDPJobSpec | None, pod: Pod, log: LogEnd) -> LogEnd:
    """What the program of this pod said of its end.

    The trainer writes its termination message on purpose. That of another program is the end of its log, where an
    exception may be cut off, or only noise after it.
    """
    message = pod.exit.parsed_message if pod.exit else NO_LOG
    if spec is not None and spec.trainer and message.exception:
        return message
    return log if log.exception or (log != NO_LOG and not message.exception) else message


def could_be_final(observed: Observed, exit_code: int | None) -> bool:
    """Whether the log of a program that ended with this code may prove that it ends in the same way each time.

    A program that has made a step is right as it is.
    """
    spec, status, progress = observed.job.spec, observed.job.status, observed.progress
    if spec is None or not spec.command:
        return False
    if not _starts_a_script(spec.command) and not (exit_code == _NOT_FOUND and _SHELLS.match(spec.command[0])):
        return False
    steps = (
        status.restarts.furthest_step,
        status.progress.step if status.progress else 0,
        progress.step if progress else 0,
    )
    return exit_code in (contract.EXIT_PROGRAM_ERROR, contract.EXIT_BAD_CONFIG, _NOT_FOUND) and not any(steps)


def _starts_a_script(command: Sequence[str]) -> bool:
    """Whether the command starts a script, and nothing before it that could have failed."""
    words = list(command)
    while words and (words[0].rpartition("/")[2] in ("env", "exec") or "=" in words[0]):
        words = words[1:]
    if len(words) < 3 or not _SHELLS.match(words[0]):
        return bool(words) and bool(_INTERPRETERS.match(words[0]))
    if not re.match(r"-\w*c$", words[1]):
        return False
    *before, last = (part.split() for part in re.split(r"&&|;|\n", words[2].strip()))
    prepares = all(not part or part[0] in _PREPARATIONS for part in before)
    return prepares and not (last and _SHELLS.match(last[0])) and _starts_a_script(last)


def _class_of_disruption(observed: Observed, pod: Pod) -> Reason | None:
    """The class of a disruption: the cluster ended, evicted or deleted the pod; None if it did not."""
    if pod.reason == "Evicted" and _OWN_STORAGE_LIMIT.search(pod.message):
        return Reason.STORAGE_LIMIT
    if pod.reason in _POD_REASONS:
        return _POD_REASONS[pod.reason]
    if not pod.disruption:
        # The node went away and came back. The kubelet may also say so of a pod that it evicts.
        unknown = pod.exit is not None and pod.exit.reason == "ContainerStatusUnknown"
        return Reason.POD_DISRUPTED if unknown else None
    said = pod.disruption.partition(":")[0]
    by_queue = Reason.EVICTED if said.startswith(QUEUE_EVICTION) else Reason.POD_DISRUPTED
    reason = _DISRUPTIONS.get(said, by_queue)
    return Reason.NODE_DRAINED if reason == Reason.EVICTED and pod.node in observed.nodes_cordoned else reason


def _class_of_exit(observed: Observed, pod: Pod, log: LogEnd) -> Reason:
    assert pod.exit is not None, "the caller passes a pod whose program has ended"
    spec = observed.job.spec
    trainer = spec is not None and spec.trainer is not None
    if pod.exit.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY
    said = said_by(spec, pod, log)
    exception = said.exception
    if _ended_by_its_deadline(pod, pod.exit, exception):
        return Reason.POD_DEADLINE
    if pod.exit.reason in START_REASONS:
        return Reason.BAD_COMMAND if _NO_SUCH_PROGRAM.search(pod.exit.message) else Reason.CONTAINER_CONFIG
    if trainer and pod.exit.code in _TRAINERS_CODES:
        return _TRAINERS_CODES[pod.exit.code]
    is_bus_error = signal.SIGBUS in (pod.exit.signal, said.worker.signal if said.worker else None)
    is_aborted = pod.exit.signal == signal.SIGABRT
    has_raised = is_aborted and bool(exception)  # a thread of torch may abort a process that an exception is ending
    if is_aborted:  # NCCL's watchdog aborts, and C++ prints no traceback
        exception = exception or pod.exit.parsed_message.symptoms or log.symptoms
    if trainer and pod.exit.code == contract.EXIT_PEER_LOST:
        return (
            Reason.COLLECTIVE_TIMEOUT
            if is_timeout(exception or pod.exit.parsed_message.symptoms)
            else Reason.COLLECTIVE_ERROR
        )
    if is_echo(exception):
        return Reason.COLLECTIVE_TIMEOUT if is_timeout(exception) else Reason.COLLECTIVE_ERROR
    if is_out_of_memory(exception) or (
        (is_bus_error or is_death_of_a_worker(exception)) and is_out_of_shared_memory(said.symptoms)
    ):
        return Reason.OUT_OF_MEMORY
    if pod.exit.signal and not has_raised:
        return Reason.KILLED
    return _final_class(spec, said) if could_be_final(observed, pod.exit.code) else Reason.PROGRAM_ERROR


def _final_class(spec: DDPJobSpec | None, said: LogEnd) -> Reason:
    """The class of a program that has made no step: a final one if it proves that each attempt ends in the same way."""
    if _NO_MODULE.match(said.exception) or OF_ONE_NODE.search(said.exception):
        return Reason.BAD_CONFIG
    if said.exception:
        return Reason.PROGRAM_ERROR
    no_script = _NO_SHELL_SCRIPT.match(said.last_line)
    is_named = (
        no_script and spec is not None and no_script[1] in (spec.command or ())
    )  # not a file that the script needs
    if is_named or _NO_SCRIPT.match(said.last_line):
        return Reason.BAD_COMMAND
    return Reason.BAD_CONFIG if _WRONG_ARGUMENTS.match(said.last_line) else Reason.PROGRAM_ERROR


def _ended_by_its_deadline(pod: Pod, exit_: Exit, exception: str) -> bool:
    """Whether the kubelet ended the program since activeDeadlineSeconds of its pod had passed.

    A program that had failed by itself while a sidecar ran on keeps its class when the operator sets that deadline to 1.
    torchrun answers SIGTERM with exit code 1 and an exception that names the signal.
    """
    stopped = exit_.signal in _STOP_SIGNALS or is_stop_of_torchrun(exception)
    by_template = pod.active_deadline_seconds != 1
    return pod.reason == DEADLINE_EXCEEDED and (exit_.code == 0 or (stopped and by_template))


def newly_saved_step(observed: Observed, attempt: int) -> int | None:
    """The step that rank 0 of the attempt reports as saved, if it is larger than at every earlier stop.

    Without this a program that always stops with nothing new would restart for ever without being counted.
    """
    # What a replaced pod saved is in the record of its loss.
    pods = newest_pods((*observed.pods, *observed.vanished), attempt)
    steps = [saved_step(pod.exit.message) for pod in pods if pod.rank == 0 and pod.exit and not pod.exit.init_container]
    past = [failure for failure in observed.job.status.attempts if failure.attempt < attempt or failure.replaced]
    before = [failure.checkpoint_step for failure in past if failure.checkpoint_step is not None]
    return next((step for step in steps if step is not None and step > max(before, default=-1)), None)


def newest_pods(pods: Sequence[Pod], attempt: int) -> list[Pod]:
    """Those of the attempt of whose rank there is no later pod among them."""
    of_attempt = [pod for pod in pods if not pod.is_placeholder and pod.attempt == attempt]
    newest: dict[int, int] = {}
    for pod in of_attempt:
        newest[pod.rank] = max(pod.replacement, newest.get(pod.rank, 0))
    return [pod for pod in of_attempt if pod.replacement == newest[pod.rank]]


def saved_step(message: str) -> int | None:
    """The step that a rank saved when it stopped on request, from its termination message."""
    match = _SAVED_STEP.search(message)
    return int(match[1]) if match else None
