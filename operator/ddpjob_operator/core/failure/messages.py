"""The texts about a failure in the status: the message of one rank's end, and the sentence that contains it."""

import re
import signal

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.status import Failure
from ddpjob_operator.core.failure.class_of_end import EVICTION, OF_ONE_NODE, START_REASONS, said_by
from ddpjob_operator.core.failure.classes import HOW
from ddpjob_operator.core.failure.last_line import is_crash
from ddpjob_operator.core.failure.log_parsing import is_out_of_shared_memory
from ddpjob_operator.core.model import NO_LOG, Exit, Observed, Pod
from ddpjob_operator.core.security import hint_for
from ddpjob_operator.core.untrusted import printable

#: The line of torch's sources that raised an exception: `[/…/unbound_buffer.cc:78] `.
_SOURCE_LINE = re.compile(r"\[/[^\s:\[\]]+:\d+\] ")
#: The first line of the trainer's termination message.
_TRAINERS_HEADER = re.compile(rf"^rank \d+(?:{re.escape(contract.TERMINATION_ECHO_SUFFIX)})?\s+")
#: The runtime's own message follows this and the names of all its layers.
_RUNTIMES_LAYERS = "unable to start container process: "

_SHARED_MEMORY = (
    "/dev/shm is full: it has 1 GiB for each process unless template mounts a larger emptyDir with medium Memory there; use"  # noqa: S108 no temporary file
    " fewer data-loader workers, or mount one and raise resources.limits.memory, against which it counts"
)

_ALL_NODES = (
    "the program takes this pod for the only one; tell Lightning of all:"
    " Trainer(num_nodes=int(os.environ['NNODES']), devices=N) with N ranks in each pod"
)


def failure_sentence(failure: Failure) -> str:
    """The failure in one sentence."""
    if failure.rank is None:
        return f"Attempt {failure.attempt} ended: {failure.message}"
    if failure.reason == Reason.HUNG and failure.exit_code is None:  # which rank hangs is not known
        return (
            f"No rank made progress in attempt {failure.attempt}: {failure.message}; rank 0 is in pod {failure.pod}"
            + (f" on node {failure.node}" if failure.node else "")
        )
    where = rank_and_pod(failure)
    quoted = f": {failure.message}" if failure.message else ""
    saved = f"; it had saved step {failure.checkpoint_step}" if failure.checkpoint_step is not None else ""
    replaced = "; only lost pods are replaced, and the others wait" if failure.replaced else ""
    return f"{where} {_how(failure)} in attempt {failure.attempt}{quoted}{saved}{replaced}"


def rank_and_pod(failure: Failure) -> str:
    """The rank that failed, with its pod and its node; where only the pod is known, that."""
    node = f", node {failure.node})" if failure.node else ")"
    if failure.global_rank is None:
        return f"A rank of pod {failure.pod} (node rank {failure.rank}{node}"
    node_rank = f"node rank {failure.rank}, " if failure.rank != failure.global_rank else ""
    return f"Rank {failure.global_rank} ({node_rank}pod {failure.pod}{node}"


def end_message(observed: Observed, pod: Pod, reason: Reason) -> str:
    """The message about a pod's end of this class, in one line."""
    match reason:
        case Reason.NODE_LOST:
            return f"node {pod.node} stopped answering"
        case Reason.POD_DELETED:
            return "the operator did not delete it"
        case Reason.NODE_DRAINED if pod.disruption.startswith(EVICTION):
            return f"node {pod.node} is being drained"
        case Reason.STORAGE_LIMIT:
            return printable(pod.message)
        case Reason.EVICTED | Reason.PREEMPTED | Reason.NODE_DRAINED | Reason.POD_DISRUPTED:
            return _message_of_the_cluster(pod, reason)
        case Reason.STOPPED_WITH_CHECKPOINT:
            return ""
        case Reason.POD_DEADLINE:
            return f"it ran longer than activeDeadlineSeconds of its pod ({pod.active_deadline_seconds})"
    assert pod.exit is not None, "every other class is derived from an exit"
    return _message_of_the_exit(observed, pod, pod.exit, reason)


def _message_of_the_exit(observed: Observed, pod: Pod, exit_: Exit, reason: Reason) -> str:
    if reason == Reason.OUT_OF_MEMORY and exit_.reason == "OOMKilled":
        return "it was OOMKilled: raise resources.limits.memory or use less"
    if exit_.init_container:
        return _message_of_the_init_container(observed, pod, exit_)
    if exit_.reason in START_REASONS:
        return _with_hint(observed, pod, reason, printable(exit_.message.rpartition(_RUNTIMES_LAYERS)[2]))
    return _with_hint(observed, pod, reason, _SOURCE_LINE.sub("", _message_of_the_program(observed, pod)))


def _how(failure: Failure) -> str:
    if how := HOW.get(failure.reason):
        return how
    if failure.signal is not None and failure.reason != Reason.PROGRAM_ERROR:
        return f"was killed by signal {failure.signal} ({_signal_name(failure.signal)})"
    signal_name = f" ({_signal_name(failure.signal)})" if failure.signal is not None else ""
    return "was ended" if failure.exit_code is None else f"ended with exit code {failure.exit_code}{signal_name}"


def _message_of_the_cluster(pod: Pod, reason: Reason) -> str:
    if pod.disruption:  # its reason is what the class says already, except for the class of all other disruptions
        code, _, message = pod.disruption.partition(": ")
        return printable(pod.disruption if reason == Reason.POD_DISRUPTED else message or code)
    kubelets = pod.reason or (pod.exit.reason if pod.exit else "")
    return printable(f"{kubelets}: {pod.message}".strip(": "))


def _message_of_the_init_container(observed: Observed, pod: Pod, exit_: Exit) -> str:
    log, message = observed.logs.get(pod.uid, NO_LOG), exit_.parsed_message
    if exit_.reason == "OOMKilled":
        end, said = "was OOMKilled", "raise its resources.limits.memory or use less"
    elif exit_.reason in START_REASONS:
        end, said = "could not start", exit_.message.rpartition(_RUNTIMES_LAYERS)[2]
    else:
        end = f"ended with exit code {exit_.code}"
        said = log.exception or message.exception or log.last_line or message.last_line
    return printable(f"init container {exit_.init_container} {end}" + (f": {said}" if said else ""))


def _evidence_of(observed: Observed, pod: Pod) -> str:
    said = said_by(observed.job.spec, pod, observed.logs.get(pod.uid, NO_LOG))
    return f"{said.exception}\n{said.symptoms}"


def _message_of_the_program(observed: Observed, pod: Pod) -> str:
    assert pod.exit is not None, "the caller passes a pod whose program has ended"
    spec, log, message = observed.job.spec, observed.logs.get(pod.uid, NO_LOG), pod.exit.message
    said = said_by(spec, pod, log)
    if said.exception:
        return f"{said.exception} (then {said.then})" if said.then else said.exception
    of_worker = said.worker is not None and bool(said.worker.signal) and pod.exit.code == 1
    if pod.exit.signal or of_worker:  # what it printed before has nothing to do with the signal, unless it ended itself
        last = said.last_line or pod.exit.parsed_message.last_line
        return last if is_crash(last) or pod.exit.signal == signal.SIGABRT else ""
    if spec is not None and spec.trainer:
        message = _TRAINERS_HEADER.sub("", message)  # the sentence names the rank
        # A traceback longer than the message lost its head; its last line is the exception.
        return pod.exit.parsed_message.last_line if '\n  File "' in message else printable(message)
    return log.last_line or pod.exit.parsed_message.last_line


def _with_hint(observed: Observed, pod: Pod, reason: Reason, message: str) -> str:
    if reason == Reason.OUT_OF_MEMORY and is_out_of_shared_memory(_evidence_of(observed, pod)):
        return f"{message} (hint: {_SHARED_MEMORY})"
    if OF_ONE_NODE.search(message):
        return f"{message} (hint: {_ALL_NODES})"
    if pod.security is None or observed.job.spec is None:
        return message
    hint = hint_for(message, pod.security, observed.job.spec)
    return f"{message} (hint: {hint})" if hint else message


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
