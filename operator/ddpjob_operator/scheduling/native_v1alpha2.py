"""Gang scheduling of Kubernetes 1.36, whose PodGroups are immutable."""

from ddpjob_operator.core.model import Kind
from ddpjob_operator.scheduling.native_groups import NativeGroups


class NativeV1Alpha2(NativeGroups):
    """PodGroups of scheduling.k8s.io/v1alpha2."""

    kind = Kind(api_version="scheduling.k8s.io/v1alpha2", kind="PodGroup", plural="podgroups")
    gates = "the feature gates GenericWorkload and GangScheduling"
    scheduled = "PodGroupScheduled"
