"""Pains 20, 24 and 25: how many, how large, how fast, and small traps on the way."""

import json
from dataclasses import replace

import pytest
import yaml

from bench.operators.process import DDPJobOperator
from builders import NOW, broken, created, deleted, ended, job, observed, pod, program, running
from ddpjob_operator.api import names
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.failure.messages import sentence
from ddpjob_operator.core.model import CreateService, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import pod_name
from pain_steps import ROOT, bodies, environment, rendered, written
from testbed import wait_for
from testbed.kubectl import KubectlError

NUM_PODS = 100


def manifest(**spec: object) -> str:
    """A job as a user writes it."""
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "job"}}
    return json.dumps({**body, "spec": {"nodes": 2, "command": ["python", "train.py"], **spec}})


def partly_placed(**spec: object):
    """A gang of two that has a place for rank 0 alone."""
    of = program(nodes=2, **spec)
    why = Waiting(reason="Unschedulable", message="0/1 nodes are available: 1 Insufficient cpu.")
    held = pod(of, 1, node=None, running=False, phase="Pending", waiting=why)
    return written(observed(of, pod(of, 0), held))


def test_pain_20_a_job_has_one_size_and_says_so(ddpjob_crd, namespace) -> None:
    """Not elastic: what asks for that is refused in words, and nothing can scale a running job behind its back."""
    crd = yaml.safe_load((ROOT / "manifests/crd/ddpjob.yaml").read_text())
    assert [set(version["subresources"]) for version in crd["spec"]["versions"]] == [{"status"}]

    with pytest.raises(KubectlError, match=r'unknown field "spec\.elasticPolicy"'):
        ddpjob_crd.kubectl("create", "-n", namespace, "-f", "-", stdin=manifest(elasticPolicy={"minReplicas": 1}))
    ddpjob_crd.kubectl("create", "-n", namespace, "-f", "-", stdin=manifest())
    with pytest.raises(KubectlError, match="only while the job is suspended"):
        ddpjob_crd.kubectl("patch", "ddpjob", "job", "-n", namespace, "--type=merge", "-p", '{"spec":{"nodes":1}}')


def test_pain_20_another_size_is_another_gang_of_the_same_job() -> None:
    seen = running(program(nodes=2))
    edited = replace(seen, job=replace(seen.job, spec=program(nodes=3).spec))
    seen = written(edited)  # edited while it was suspended, and resumed
    assert seen.job.status.reason == Reason.SPEC_CHANGED
    made = plan(replace(seen, pods=()), NOW)

    assert created(made) == ["job-2-0", "job-2-1", "job-2-2"]
    assert {environment(body)["WORLD_SIZE"] for body in bodies(made).values()} == {"3"}
    assert (made.status.restarts.counted, made.status.restarts.infrastructure) == (0, 0)


def test_pain_20_with_too_few_nodes_a_gang_waits_and_says_for_what() -> None:
    status = partly_placed().job.status

    assert (status.phase, status.ready) == (Phase.PENDING, "1/2")
    assert "1 of 2 pods have no node: 0/1 nodes are available: 1 Insufficient cpu" in (status.message or "")
    assert "pods with a node: 1, to be released if the others find none" in (status.message or "")


def test_pain_24_all_pods_of_a_large_gang_are_asked_for_at_once_with_nothing_written_before() -> None:
    of = program(nodes=1000)
    made = plan(observed(of, service=None), NOW)

    assert not made.write_ahead
    assert isinstance(made.actions[0], CreateService)
    assert len(created(made)) == 1000


def test_pain_24_the_operator_itself_makes_all_pods_of_a_large_gang(
    ddpjob_crd, namespace, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'operator'}:{ROOT / 'trainer'}")
    ask = ("pods", "-n", namespace, "-l", "ddpjob.dev/job=job")
    with DDPJobOperator(ddpjob_crd.kubeconfig, tmp_path / "log", "--namespace", namespace):
        ddpjob_crd.kubectl("create", "-n", namespace, "-f", "-", stdin=manifest(nodes=NUM_PODS))
        wait_for(
            f"{NUM_PODS} pods",
            lambda: len(ddpjob_crd.kubectl("get", *ask, "-o", "name").split()) == NUM_PODS,
            seconds=60,
        )


def test_pain_25_on_the_host_s_network_each_job_can_have_a_port_of_its_own() -> None:
    template = {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}
    of = program(nodes=2, masterPort=29777, template=template)
    made = plan(observed(of, service=None), NOW)

    service = made.actions[0]
    assert isinstance(service, CreateService)
    assert service.body["spec"]["ports"][0]["port"] == 29777
    for body in bodies(made).values():
        found = environment(body)
        assert (found["MASTER_PORT"], found["PET_MASTER_PORT"]) == ("29777", "29777")
        assert body["spec"]["hostNetwork"]


def test_pain_25_a_port_that_is_taken_is_told() -> None:
    said = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    of = program(nodes=2)
    taken = ended(of, 0, code=1, message=f'Traceback (most recent call last):\n  File "t.py", line 1\n{said}\n')
    failure = plan(broken(of, taken), NOW).status.failure
    told = sentence(failure)

    assert failure.reason == Reason.PROGRAM_ERROR, "rank 0's own fault, and no echo of another rank"
    assert told.startswith("Rank 0 (pod job-1-0, node node-0)")
    assert "port: 29500" in told
    assert "EADDRINUSE" in told


def test_pain_25_the_longest_name_a_job_may_have_fits_all_its_children(ddpjob_crd, namespace) -> None:
    longest = "j" * names.MAX_JOB_NAME_LENGTH
    assert len(pod_name(longest, 99_999, names.MAX_NODES - 1)) <= 63, "a pod's host name holds no more"
    assert len(f"{longest}-master") <= 63

    named = json.loads(manifest())
    named["metadata"]["name"] = longest + "j"
    with pytest.raises(KubectlError, match=f"longer than {names.MAX_JOB_NAME_LENGTH} characters"):
        ddpjob_crd.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(named))


@pytest.mark.parametrize("processes", [1, 8])
def test_pain_25_shared_memory_grows_with_the_processes_instead_of_being_64_mb(processes) -> None:
    spec = rendered(job(command=["torchrun", "t.py"], processesPerNode=processes))["spec"]
    (name,) = (m["name"] for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == name)

    assert volume["emptyDir"]["medium"] == "Memory"
    assert int(volume["emptyDir"]["sizeLimit"]) == processes * 2**30


def test_pain_25_gang_scheduling_cannot_be_off_in_silence(ddpjob_crd, namespace) -> None:
    """There is none to switch on: asking for one is refused, and a partly placed gang says so and gives back."""
    with pytest.raises(KubectlError, match=r'unknown field "spec\.schedulingPolicy"'):
        ddpjob_crd.kubectl("create", "-n", namespace, "-f", "-", stdin=manifest(schedulingPolicy={"queue": "q"}))

    seen = partly_placed()
    gives_back = plan(seen, NOW).wake_at
    assert gives_back is not None
    seen = written(seen, gives_back)
    assert (seen.job.status.attempt, seen.job.status.reason) == (2, Reason.GANG_GIVEN_BACK)
    assert "1 of 2 pods had a node and the rest found none" in (seen.job.status.message or "")
    assert set(deleted(plan(seen, gives_back))) == {"job-1-0", "job-1-1"}
    assert seen.job.status.restarts.counted == 0


def test_pain_25_a_scheduler_of_gangs_gets_pods_that_it_can_group() -> None:
    spec = {"schedulerName": "volcano"}
    metadata = {"annotations": {"scheduling.k8s.io/group-name": "job"}}
    for rank in range(2):
        body = rendered(program(nodes=2, template={"spec": spec, "metadata": metadata}), rank)
        assert body["spec"]["schedulerName"] == "volcano"
        assert body["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "job"
