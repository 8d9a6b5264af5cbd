"""Commands by which ranks do not train together: each pod trains alone, or waits for ranks that nobody starts."""

import json
import re

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.untrusted import beginning

#: Arguments by which torchrun starts the processes of one node only, wherever they are in the command or in a shell's script.
_ONE_NODE = re.compile(
    r"(?:^|\s)(?:--standalone(?=\s|$)|--?nnodes[=\s]+['\"]?1(?::1)?['\"]?(?=\s|$)|--num[-_]machines[=\s]+1(?=\s|$))"
)
_LAUNCHER = re.compile(r"\btorchrun\b|torch\.distributed\.(?:run|launch)\b|\baccelerate\b")
_ACCELERATE = re.compile(r"\baccelerate\s+launch\b|\baccelerate\.commands\.launch\b")
#: Arguments by which accelerate starts several processes, or takes from a file how many.
_SEVERAL = re.compile(
    r"(?:^|\s)--(?:multi[-_]gpu|num[-_]machines|config[-_]file|use[-_](?:fsdp|deepspeed|megatron[-_]lm))\b"
)
#: Longest command that is searched.
_MAX_LENGTH = 64 * 1024
#: Longest command that a message quotes.
_MAX_QUOTED_LENGTH = 512


def too_few_processes(spec: DDPJobSpec) -> str:
    """What is wrong with a command that starts one process where several ranks are expected, and waits for the others; empty for others."""
    words = spec.command or ()
    command = " ".join(words)[:_MAX_LENGTH]
    if spec.processes == 1 or not _ACCELERATE.search(command) or _SEVERAL.search(command):
        return ""
    first = next((number for number, word in enumerate(words) if word.endswith(".py")), len(words))
    instead = beginning(json.dumps(["torchrun", *(words[first:] or ("SCRIPT",))]), _MAX_QUOTED_LENGTH)
    return (
        f"accelerate launch starts one process in each pod, which waits for the others, but each pod has {spec.processes} ranks: use"
        f" torchrun, for which a script needs no change, such as command: {instead}"
    )


def warning(spec: DDPJobSpec) -> str:
    """What is wrong with a command by which ranks do not train together; empty for others."""
    if waits := too_few_processes(spec):
        return waits
    command = " ".join(spec.command or ())[:_MAX_LENGTH]
    found = _ONE_NODE.search(command) if spec.nodes > 1 and _LAUNCHER.search(command) else None
    if found is None:
        return ""
    return (
        f"with {' '.join(found[0].split())} each of the {spec.nodes} pods trains alone: leave it out, since torchrun takes the number"
        " of nodes and the address of rank 0 from the environment"
    )
