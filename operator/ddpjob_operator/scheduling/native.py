"""Kubernetes' own gang scheduling, by the version of scheduling.k8s.io that the cluster serves; each is a module of its own."""

from collections.abc import Mapping

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.scheduling.interface import Candidate, Provider, Right
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.native_v1beta1 import NativeV1Beta1
from ddpjob_operator.scheduling.pod_groups import rights_on_groups

GROUP = "scheduling.k8s.io"
#: Newest first.
_VERSIONS: Mapping[str, Provider] = {"v1beta1": NativeV1Beta1(), "v1alpha2": NativeV1Alpha2()}

CANDIDATE = Candidate(
    name=ProviderName.NATIVE,
    group=GROUP,
    versions=_VERSIONS,
    rights=(*rights_on_groups(GROUP), Right("patch", GROUP, "podgroups")),
    served_by=(
        "Kubernetes 1.37 serves v1beta1, and 1.36 v1alpha2, only where the API server has the feature gate GenericWorkload and"
        " --runtime-config=scheduling.k8s.io/v1beta1=true, or v1alpha2=true"
    ),
)
