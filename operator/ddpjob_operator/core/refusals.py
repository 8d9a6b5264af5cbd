"""What the API server refuses, in sentences for the status."""

from collections.abc import Mapping

from ddpjob_operator.core.model import Rejection
from ddpjob_operator.core.untrusted import printable


def refusal(name: str, why: Rejection) -> str:
    """The sentence about a refusal: the request, the name of the object, and the reason."""
    verb = "fails to" if why.by_failure else "refuses to"
    return f"the API server {verb} {why.request} {name}: {printable(why.message)}"


def refusals(refused: Mapping[str, Rejection]) -> str:
    """The first refusal, and how many more there are; empty if nothing is refused."""
    if not refused:
        return ""
    name, why = min(refused.items())
    return refusal(name, why) + (f" (and {len(refused) - 1} more such requests)" if len(refused) > 1 else "")
