"""The wait of a spare pod: everything is imported, no GPU is touched and no rank runs, until it replaces a lost pod.

The operator then gives the pod the variables that a new pod of that rank would have had. They come as a file, which the kubelet
writes: the pod needs no token and listens on no port.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.template import Template, TemplateError, is_asked_to_stop

#: Seconds between two looks at the file.
LOOK_SECONDS = 0.05


def is_spare(environ: Mapping[str, str]) -> bool:
    """Whether this pod has yet to be assigned a rank."""
    return contract.DDPJOB_SPARE_ASSIGNMENT in environ


def wait_for_assignment(environ: Mapping[str, str], template: Template) -> dict[str, str]:
    """The environment with the variables of the rank that the pod is assigned.

    Raises:
        TemplateError: the template has ended, or SIGTERM or SIGINT is pending, which the launcher has blocked.
        ConfigError: the file does not hold the variables of a rank.
    """
    template.wait_until_ready()
    Path(environ[contract.DDPJOB_SPARE_READY]).touch()
    file = Path(environ[contract.DDPJOB_SPARE_ASSIGNMENT])
    print("ddpjob launcher: this pod is a spare and waits until it replaces a lost one", flush=True)
    while not (text := _content(file)):
        if template.has_ended or is_asked_to_stop():
            raise TemplateError
        time.sleep(LOOK_SECONDS)
    assigned = _parse(file, text)
    print(f"ddpjob launcher: this pod replaces that of node rank {assigned[contract.NODE_RANK]}", flush=True)
    own = (contract.DDPJOB_SPARE_ASSIGNMENT, contract.DDPJOB_SPARE_READY)
    return {name: value for name, value in environ.items() if name not in own} | assigned


def _parse(file: Path, text: str) -> dict[str, str]:
    with suppress(ValueError):
        assigned = json.loads(text)
        is_of_text = isinstance(assigned, dict) and all(isinstance(value, str) for value in assigned.values())
        if is_of_text and contract.NODE_RANK in assigned:
            return dict(assigned)
    raise ConfigError(
        f"{file} should hold the variables of a rank as JSON, NODE_RANK among them, and holds {text[:200]!r}"
    )


def _content(file: Path) -> str:
    """What the file holds; nothing also in the moment in which the kubelet exchanges its directory, which a link leads to."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
