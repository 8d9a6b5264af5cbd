"""Names of jobs that follow from other names, such as that of a directory, a function or a pod."""

import re
import secrets

from ddpjob_operator.api.names import MAX_JOB_NAME_LENGTH

_RANDOM_BYTES = 2
#: What `pod_name` in `render/pods.py` makes, and the names of pods that an older release used to replace lost ones.
_POD = re.compile(r"(.+)-\d+-(?:\d+(?:-r\d+)?|spare\d+-\d+)")
#: The end of the name of a pod that waits for a missing node in place of a rank's.
PLACE = "-place"


def valid_name(text: str, *, max_length: int = MAX_JOB_NAME_LENGTH) -> str:
    """The text as far as the name of a job may contain it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}"
    return name[:max_length].strip("-")


def new_name(text: str) -> str:
    """The same with a random end."""
    end = secrets.token_hex(_RANDOM_BYTES)
    return f"{valid_name(text, max_length=MAX_JOB_NAME_LENGTH - len(end) - 1)}-{end}"


def job_of_pod(name: str) -> str:
    """Name of the job of a rank's pod of this name; empty if it is not that of such a pod."""
    found = _POD.fullmatch(name)
    return found[1] if found else ""
