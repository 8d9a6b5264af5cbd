"""The NetworkPolicy of a job, and who may connect to its ranks by the API's rules."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.core.actions import CreateObject, CreatePod, DeleteObject
from ddpjob_operator.core.model import Job, Observed, OwnedObject
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import object_of
from ddpjob_operator.core.render.network_policy import NETWORK_POLICY, WATCHED_POLICIES, network_policy
from support.builders import created, job, observed, pod

NOW = 1_800_000_000.0


def existing(of: Job) -> OwnedObject:
    body: dict[str, Any] = {**network_policy(of)}
    body["metadata"] = {**body["metadata"], "uid": "policy-uid", "resourceVersion": "1"}
    return object_of(WATCHED_POLICIES, body)


def protected(of: Job, *pods: Any, **more: Any) -> Observed:
    return observed(of, *pods, makes_network_policies=True, **more)


def test_the_policy_is_created_before_the_pods() -> None:
    policy, *pods = plan(protected(job(nodes=2)), NOW).actions
    assert isinstance(policy, CreateObject)
    assert (policy.kind, policy.name) == (NETWORK_POLICY, "job-ranks")
    assert len(pods) == 2


def test_only_pods_of_the_same_job_may_connect_to_its_ranks() -> None:
    of = job(nodes=2)
    policy, first, _ = plan(protected(of), NOW).actions
    assert isinstance(policy, CreateObject)
    assert isinstance(first, CreatePod)
    own = {"podSelector": {"matchLabels": {"ddpjob.dev/job-uid": of.uid}}}
    assert policy.body["spec"] == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    assert first.manifest.render()["metadata"]["labels"]["ddpjob.dev/job-uid"] == of.uid


def test_a_running_job_without_a_policy_gets_one() -> None:
    """An operator that is upgraded, or that got the right, protects the jobs that run already; they keep their pods."""
    of = job()
    (action,) = plan(protected(of, pod(of)), NOW).actions
    assert isinstance(action, CreateObject)


def test_nothing_is_done_about_a_policy_that_exists() -> None:
    of = job()
    assert plan(protected(of, pod(of), objects=(existing(of),)), NOW).actions == ()


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(observed(job(nodes=2)), id="the operator may not make policies"),
        pytest.param(protected(job(nodes=2, networkPolicy=False)), id="the job has opted out"),
    ],
)
def test_pods_are_created_without_a_policy(seen: Observed) -> None:
    made = plan(seen, NOW)
    assert created(made) == ["job-1-0", "job-1-1"]
    assert len(made.actions) == 2


def test_the_policy_of_a_job_that_opts_out_is_deleted_once() -> None:
    of = job(networkPolicy=False)
    found = existing(of)
    seen = protected(of, pod(of), objects=(found,))
    assert plan(seen, NOW).actions == (DeleteObject(kind=NETWORK_POLICY, name="job-ranks", uid="policy-uid"),)
    assert plan(replace(seen, objects=(replace(found, deleting=True),)), NOW).actions == ()


def test_a_policy_with_the_labels_of_the_job_that_does_not_belong_to_it_is_no_substitute_and_is_kept() -> None:
    """A backup restores labels without owners. The ranks of the job applied again then had no policy."""
    of = job()
    foreign = replace(existing(of), job_uid="")
    (action,) = plan(protected(of, pod(of), objects=(foreign,)), NOW).actions
    assert isinstance(action, CreateObject)

    opted_out = job(networkPolicy=False)
    assert plan(protected(opted_out, pod(opted_out), objects=(foreign,)), NOW).actions == ()


def test_the_field_does_not_change_pods() -> None:
    """Jobs that run while the operator is upgraded do not look edited, and the field can be changed at any time."""
    with_policy, without = job().spec, job(networkPolicy=False).spec
    assert with_policy is not None
    assert without is not None
    assert with_policy.shape() == without.shape()
