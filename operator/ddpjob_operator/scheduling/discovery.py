"""Which provider the operator uses: the setting, and for `auto` what the cluster serves and allows.

A queue comes before a gang scheduler, and what an administrator has installed before what Kubernetes brings along.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.scheduling import coscheduling, kueue, native, volcano
from ddpjob_operator.scheduling.interface import Candidate, Provider, Right
from ddpjob_operator.scheduling.none import NO_PROVIDER

#: The setting that chooses the first candidate that the cluster serves and of which the operator has the rights.
AUTO = "auto"
#: In the order in which `auto` tries them.
CANDIDATES: Sequence[Candidate] = (
    kueue.CANDIDATE,
    volcano.CANDIDATE,
    coscheduling.CANDIDATE,
    native.CANDIDATE,
)
#: Kubernetes' own gang scheduling.
NATIVE = native.CANDIDATE
#: The values of the setting.
SETTINGS = (AUTO, *(name.value for name in ProviderName))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The provider, and why it was chosen, as one sentence."""

    provider: Provider
    why: str


def candidates_of(setting: str) -> Sequence[Candidate]:
    """The candidates that the setting allows, in the order in which they are tried."""
    return [candidate for candidate in CANDIDATES if setting in (AUTO, candidate.name)]


def newest(name: ProviderName) -> Provider:
    """The provider of this name for the newest version of its API; NO_PROVIDER where this release has none of this name."""
    return next((candidate.newest for candidate in CANDIDATES if candidate.name is name), NO_PROVIDER)


def choose(setting: str, served: Mapping[str, Sequence[str]], denied: Collection[Right] = ()) -> Choice:
    """The provider to use, given the served versions by API group and the rights that the operator lacks.

    Raises:
        LookupError: the setting names a provider that the cluster does not serve, or of which rights are missing.
    """
    skipped = []
    for candidate in candidates_of(setting):
        versions = served.get(candidate.group, ())
        provider = candidate.of_versions(versions)
        missing = [right for right in candidate.rights if right in denied]
        if provider is None:
            obstacle = _not_served(candidate, versions)
            if versions:  # the group is there, and something keeps its gangs off
                skipped.append(f"{candidate.name}: {obstacle}")
        elif missing:
            rights = ", ".join(f"{right.verb} {right.resource}.{right.group}".rstrip(".") for right in missing)
            obstacle = f"the operator may not {rights}"
            skipped.append(f"{candidate.name}: {obstacle}")
        else:
            return Choice(
                provider=provider, why=f"the cluster serves {candidate.group}/{candidate.version_of(versions)}"
            )
        if setting != AUTO:
            raise LookupError(f"the scheduling provider is {setting}, but {obstacle}")
    if setting not in (AUTO, ProviderName.NONE):
        raise LookupError(f"the scheduling provider is {setting}, which this release does not know")
    if setting == ProviderName.NONE:
        return Choice(provider=NO_PROVIDER, why="the setting says so")
    return Choice(provider=NO_PROVIDER, why="; ".join(skipped) or "the cluster serves no other")


def _not_served(candidate: Candidate, versions: Sequence[str]) -> str:
    """What the cluster serves in the place of what the candidate uses, and how that changes."""
    wanted = f"{candidate.group}/{' or '.join(candidate.versions)}"
    instead = f", only {', '.join(versions)}" if versions else ""
    how = f"; {candidate.served_by}" if candidate.served_by else ""
    return f"the cluster does not serve {wanted}{instead}{how}"
