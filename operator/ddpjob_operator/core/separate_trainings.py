"""Commands by which each pod trains alone: all of them succeed, and N models are trained in place of one."""

import re

from ddpjob_operator.api.spec import DDPJobSpec

#: Arguments by which torchrun starts the processes of one node only, wherever they are in the command or in a shell's script.
_ONE_NODE = re.compile(
    r"(?:^|\s)(?:--standalone(?=\s|$)|--?nnodes[=\s]+['\"]?1(?::1)?['\"]?(?=\s|$)|--num[-_]machines[=\s]+1(?=\s|$))"
)
_LAUNCHER = re.compile(r"\btorchrun\b|torch\.distributed\.(?:run|launch)\b|\baccelerate\b")
#: Longest command that is searched.
_MAX_LENGTH = 64 * 1024


def warning(spec: DDPJobSpec) -> str:
    """What is wrong with a command by which each pod trains alone; empty for others."""
    command = " ".join(spec.command or ())[:_MAX_LENGTH]
    found = _ONE_NODE.search(command) if spec.nodes > 1 and _LAUNCHER.search(command) else None
    if found is None:
        return ""
    return (
        f"with {' '.join(found[0].split())} each of the {spec.nodes} pods trains alone: leave it out, since torchrun takes the number"
        " of nodes and the address of rank 0 from the environment"
    )
