"""A job that names another controller is left alone."""

from dataclasses import replace

import pytest

from builders import NOW, job, observed, pod
from ddpjob_operator.core.actions import Plan
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import job_of


@pytest.mark.parametrize("deleting", [False, True])
def test_the_operator_leaves_the_pods_and_the_status_of_another_controller_alone(deleting: bool) -> None:
    of = replace(job(nodes=2, managedBy="kueue.x-k8s.io/multikueue", suspend=True), deleting=deleting)
    assert plan(observed(of, pod(of)), NOW) == Plan.nothing(of)


def test_a_job_of_another_controller_is_left_alone_although_this_release_cannot_read_its_spec() -> None:
    """A release that had been rolled back failed such jobs with InvalidSpec."""
    metadata = {"namespace": "default", "name": "job", "uid": "job-uid", "resourceVersion": "1"}
    of = job_of({"metadata": metadata, "spec": {"managedBy": "kueue.x-k8s.io/multikueue", "nodes": "newer"}})
    assert of.spec is None
    assert plan(observed(of, service=None), NOW) == Plan.nothing(of)


def test_a_job_may_name_this_operator() -> None:
    made = plan(observed(job(nodes=2, managedBy="ddpjob.dev/operator")), NOW)
    assert len(made.actions) == 2
