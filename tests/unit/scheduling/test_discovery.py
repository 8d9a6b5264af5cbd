"""Which scheduling provider the operator uses."""

import pytest

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.scheduling.discovery import CANDIDATES, choose
from ddpjob_operator.scheduling.interface import Right

NATIVE = {"scheduling.k8s.io": ["v1", "v1alpha2"]}
CREATE_GROUPS = Right("create", "scheduling.k8s.io", "podgroups")


def test_auto_prefers_what_an_administrator_installed() -> None:
    served = {candidate.group: list(candidate.versions) for candidate in CANDIDATES}
    chosen = []
    while served:
        provider = choose("auto", served).provider
        chosen.append(provider.name)
        del served[next(candidate.group for candidate in CANDIDATES if candidate.name is provider.name)]
    assert chosen == [ProviderName.KUEUE, ProviderName.VOLCANO, ProviderName.COSCHEDULING, ProviderName.NATIVE]


@pytest.mark.parametrize(
    ("setting", "served", "denied", "provider", "why"),
    [
        ("auto", {}, (), "none", "no other"),
        (
            "auto",
            {"scheduling.k8s.io": ["v1"]},
            (),
            "none",
            "only v1; Kubernetes 1.37 serves v1beta1, and 1.36 v1alpha2",
        ),
        ("auto", {"scheduling.k8s.io": ["v1", "v1alpha1"]}, (), "none", "only v1, v1alpha1; "),  # Kubernetes 1.35
        ("auto", {"scheduling.k8s.io": ["v1", "v1beta1", "v1alpha3"]}, (), "native", "scheduling.k8s.io/v1beta1"),
        ("auto", NATIVE, (), "native", "scheduling.k8s.io/v1alpha2"),
        ("auto", NATIVE, [CREATE_GROUPS], "none", "may not create podgroups.scheduling.k8s.io"),
        ("none", NATIVE, (), "none", "setting"),
        ("native", NATIVE, (), "native", "scheduling.k8s.io"),
    ],
)
def test_the_choice_and_its_reason(
    setting: str, served: dict[str, list[str]], denied: list[Right], provider: str, why: str
) -> None:
    choice = choose(setting, served, denied)
    assert choice.provider.name == provider
    assert why in choice.why


@pytest.mark.parametrize(
    ("served", "denied", "message"),
    [
        ({}, (), "does not serve scheduling.k8s.io/v1beta1 or v1alpha2; .*feature gate GenericWorkload"),
        ({"scheduling.k8s.io": ["v1", "v1alpha1"]}, (), "v1beta1 or v1alpha2, only v1, v1alpha1; "),
        (NATIVE, [CREATE_GROUPS], "may not create podgroups"),
    ],
)
def test_a_provider_that_is_named_and_cannot_be_used_is_an_error(
    served: dict[str, list[str]], denied: list[Right], message: str
) -> None:
    with pytest.raises(LookupError, match=message):
        choose("native", served, denied)
