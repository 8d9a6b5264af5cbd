"""Names of jobs that follow from other names, such as that of a directory or a function."""

import re
import secrets

from ddpjob_operator.api.names import MAX_JOB_NAME_LENGTH

_RANDOM_BYTES = 2


def valid_name(text: str, *, max_length: int = MAX_JOB_NAME_LENGTH) -> str:
    """The text as far as the name of a job may contain it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}"
    return name[:max_length].strip("-")


def new_name(text: str) -> str:
    """The same with a random end."""
    end = secrets.token_hex(_RANDOM_BYTES)
    return f"{valid_name(text, max_length=MAX_JOB_NAME_LENGTH - len(end) - 1)}-{end}"
