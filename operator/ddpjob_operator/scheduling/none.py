"""No provider: the scheduler places one pod after the other, and a gang that fits only in part releases its nodes."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import Action, CreateObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Job, Observed, Watched
from ddpjob_operator.scheduling.affinity import attract
from ddpjob_operator.scheduling.interface import DEFAULT_SCHEDULER, Wait


class NoProvider:
    """Creates no objects."""

    name = ProviderName.NONE
    scheduler = DEFAULT_SCHEDULER
    places_whole_gangs = False
    places_fewer = True
    changes_least_nodes = False
    shares_claims = False
    watched: Sequence[Watched] = ()

    def for_attempt(self, observed: Observed) -> Self:  # noqa: ARG002 the interface's
        """Itself."""
        return self

    def before_pods(
        self,
        observed: Observed,  # noqa: ARG002 the interface's
        spec: DDPJobSpec,  # noqa: ARG002 the interface's
        pod: Callable[[], Body],  # noqa: ARG002 the interface's
    ) -> Sequence[CreateObject | PatchObject]:
        """Nothing."""
        return ()

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:  # noqa: ARG002 the interface's
        """Nothing."""
        return None

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:  # noqa: ARG002 the interface's
        """Add the topology that the job wants."""
        if spec.scheduling.topology is not None:
            attract(pod, spec.scheduling.topology)

    def end(self, observed: Observed) -> Sequence[Action]:  # noqa: ARG002 the interface's
        """Nothing."""
        return ()

    def explain(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:  # noqa: ARG002 the interface's
        """Nothing: the pods say what they wait for."""
        return None


NO_PROVIDER = NoProvider()
