"""What a program may rely on in its pod and in the master Service, whatever else is configured."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.core.actions import CreateObject
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import pod_name
from ddpjob_operator.core.render.service import service_name
from support.builders import NOW, environment, in_attempt, job, observed, pods_created, program

IMAGE = "users/train:1"


def service(of: Job) -> dict[str, Any]:
    made = plan(observed(of, service=None), NOW).actions[0]
    assert isinstance(made, CreateObject)
    return dict(made.body)


def pods(of: Job) -> list[dict[str, Any]]:
    return [dict(action.body) for action in pods_created(plan(observed(of, trainer_image=IMAGE), NOW))]


def test_rank_0_has_a_name_before_it_is_ready() -> None:
    of = program(nodes=3, masterPort=29600)
    spec = service(of)["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["ports"][0]["port"] == 29600
    for body in pods(of):
        found = environment(body)
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("job-master.default.svc", "29600")


def test_jobs_on_the_network_of_the_host_can_use_different_ports() -> None:
    template = {"spec": {"hostNetwork": True}}
    for body in pods(program(nodes=2, masterPort=29777, template=template)):
        assert body["spec"]["hostNetwork"]
        assert environment(body)["PET_MASTER_PORT"] == "29777"


def test_an_attempt_on_the_network_of_the_host_has_a_port_of_its_own_by_default() -> None:
    one = program(nodes=2, template={"spec": {"hostNetwork": True}})
    others = [replace(one, uid="another"), in_attempt(one, 2)]
    found = [{environment(body)["MASTER_PORT"] for body in pods(of)} for of in (one, *others)]
    assert [len(ports) for ports in found] == [1, 1, 1], "all ranks have the same port"
    assert len(set.union(*found)) == 3
    assert all(20_000 <= int(port) < 30_000 for ports in found for port in ports)
    assert environment(pods(program(nodes=1))[0])["MASTER_PORT"] == "29500"


def test_the_scheduler_and_the_resolver_know_that_a_pod_is_on_the_network_of_the_host() -> None:
    rank_0, rank_1 = pods(program(nodes=2, template={"spec": {"hostNetwork": True}}))
    port = int(environment(rank_0)["MASTER_PORT"])
    (declared,) = rank_0["spec"]["containers"][0]["ports"]
    assert (declared["containerPort"], declared["hostPort"]) == (port, port)
    assert "ports" not in rank_1["spec"]["containers"][0], "ranks other than 0 listen at no port that they name"
    assert {body["spec"]["dnsPolicy"] for body in (rank_0, rank_1)} == {"ClusterFirstWithHostNet"}

    own = pods(program(nodes=1, template={"spec": {"hostNetwork": True, "dnsPolicy": "Default"}}))[0]
    assert own["spec"]["dnsPolicy"] == "Default", "the template takes precedence"
    assert "dnsPolicy" not in pods(program(nodes=1))[0]["spec"]


@pytest.mark.parametrize("of", [program(nodes=2, image=IMAGE), job(nodes=2)], ids=["own program", "trainer"])
def test_a_pod_has_one_container_that_is_never_restarted_in_place(of: Job) -> None:
    for body in pods(of):
        (container,) = body["spec"]["containers"]
        assert container["image"] == IMAGE
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert "initContainers" not in body["spec"]
        assert body["spec"]["restartPolicy"] == "Never"


def test_every_attempt_finds_the_same_checkpoints_also_after_delete_and_apply() -> None:
    first = job(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "c"}}})
    second = replace(first, status=first.status.model_copy(update={"attempt": 2}))
    applied_again = replace(first, uid="another-uid")
    for of in (first, second, applied_again):
        (body,) = pods(of)
        (volume,) = (v["name"] for v in body["spec"]["volumes"] if "persistentVolumeClaim" in v)
        mounts = {mount["name"]: mount["mountPath"] for mount in body["spec"]["containers"][0]["volumeMounts"]}
        assert mounts[volume] == "/checkpoints"
        assert environment(body)["DDPJOB_CHECKPOINT_DIR"] == "/checkpoints/default/job"


@pytest.mark.parametrize("processes", [1, 8])
def test_shared_memory_grows_with_the_number_of_processes(processes: int) -> None:
    (body,) = pods(job(command=["torchrun", "t.py"], processesPerNode=processes))
    (name,) = (m["name"] for m in body["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm")
    (volume,) = (volume["emptyDir"] for volume in body["spec"]["volumes"] if volume["name"] == name)
    assert (volume["medium"], int(volume["sizeLimit"])) == ("Memory", processes * 2**30)


@pytest.mark.parametrize("attempt", [1, 7])
def test_rank_0_is_pod_0_and_one_selector_finds_it_in_every_attempt(attempt: int) -> None:
    first = program(nodes=3)
    made = pods(replace(first, status=first.status.model_copy(update={"attempt": attempt})))
    selector = {names.LABEL_JOB: "job", names.LABEL_RANK: "0"}
    selected = [body["metadata"]["name"] for body in made if selector.items() <= body["metadata"]["labels"].items()]
    assert [environment(body)["RANK"] for body in made] == ["0", "1", "2"]
    assert selected == [f"job-{attempt}-0"]


def test_names_of_pods_and_service_fit_the_limit_for_the_longest_name_of_a_job() -> None:
    longest = "j" * names.MAX_JOB_NAME_LENGTH
    assert len(pod_name(longest, 99_999, names.MAX_NODES - 1)) <= 63
    assert len(service_name(longest)) <= 63
