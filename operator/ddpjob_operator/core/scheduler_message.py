"""What the scheduler says of a pod without a node, in terms of the job."""

import re

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.untrusted import printable, tail

#: The scheduler adds after its reasons that preemption would not help, and that no claim of devices can be released for the pod.
_SCHEDULERS_TAIL = re.compile(
    r"(?:still not schedulable, )?preemption: |no new claims to deallocate|still not schedulable"
)
#: One reason for all nodes.
_ALL_SHORT = re.compile(r"0/(\d+) nodes are available: \1 (Insufficient \S+)")


def scheduler_message(spec: DDPJobSpec | None, text: str) -> str:
    """The reasons in a message of the scheduler, with the GPUs that the job needs."""
    message = _SCHEDULERS_TAIL.split(tail(text), maxsplit=1)[0].rstrip(". \n")
    if spec is not None and spec.gpus_per_node:
        scarce, needed = f"Insufficient {spec.gpu_resource}", f"{spec.gpu_resource}: {spec.gpus_per_node} free"
        if all_short := _ALL_SHORT.fullmatch(message):
            message = f"0/{all_short[1]} nodes have {needed}" if all_short[2] == scarce else message
        message = message.replace(scarce, f"without {needed}")
    return printable(message)
