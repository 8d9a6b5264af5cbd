"""The README's cluster path: helm install, kubectl apply, kubectl logs, kubectl get."""

import json
import re

import pytest

from support import REPOSITORY

EXAMPLES = REPOSITORY / "manifests/examples"


def test_the_digits_example_trains_to_97_percent(job) -> None:
    job.apply_file(EXAMPLES / "digits.yaml")
    job.wait_phase("Running")
    pods = job.pods(1)
    columns = job.kubectl("get", "ddpjob", "digits", "-n", job.namespace)
    shown = ("-n", job.namespace, "--", "python", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    environments = [json.loads(job.kubectl("exec", pod["metadata"]["name"], *shown)) for pod in pods]
    status = job.wait_end()
    log = job.kubectl("logs", "-n", job.namespace, "--tail=-1", "-l", "ddpjob.dev/job=digits,ddpjob.dev/rank=0")
    of_the_job = "--field-selector=involvedObject.kind=DDPJob,involvedObject.name=digits"
    events = job.kubectl.json("get", "events", "-n", job.namespace, of_the_job)["items"]

    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert [e["RANK"] for e in environments] == ["0", "1"]
    assert {e["WORLD_SIZE"] for e in environments} == {"2"}
    assert {e["MASTER_ADDR"] for e in environments} == {f"digits-master.{job.namespace}.svc"}
    header, row = columns.splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "ATTEMPT", "STEP", "ETA", "METRIC", "REASON", "AGE"]
    assert row.split()[:4] == ["digits", "Running", "2/2", "1"]
    assert status["phase"] == "Succeeded"
    assert status["progress"]["step"] == status["progress"]["totalSteps"]
    assert status["progress"]["headline"] == f"accuracy {accuracy(log):.2f} %"
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
    assert status["time"]["trainingSeconds"] > 0
    assert status["time"]["lostSeconds"] == 0
    assert 'ddpjob-progress {"step"' in log
    assert accuracy(log) >= 97  # on any processor: see test_number_of_ranks.py
    assert sum(event.get("count", 1) for event in events) <= 2, [event["message"] for event in events]


def accuracy(log: str) -> float:
    return float(re.findall(r"accuracy ([\d.]+) %", log)[-1])


@pytest.mark.parametrize("example", ["own-script", "own-session"])
def test_the_examples_of_scripts_run_under_torchrun_and_our_launcher(job, example) -> None:
    job.apply_file(EXAMPLES / f"{example}.yaml")

    assert job.wait_end()["phase"] == "Succeeded"
    assert "4 ranks found y = 3.00x + 1.00" in job.log()
