"""The health checks of docs/how-to/gitops.md, evaluated on statuses that the operator writes."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel

from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.model import NO_LOG, Observed
from ddpjob_operator.core.plan import plan
from support import REPOSITORY
from support.builders import NOW, TRACEBACK, broken, ended, job, observed, program, running, with_status

PAGE = (REPOSITORY / "docs" / "how-to" / "gitops.md").read_text()


def status(seen: Observed) -> dict[str, Any]:
    return plan(seen, NOW).status.as_json()


def finished(seen: Observed) -> dict[str, Any]:
    return status(with_status(seen, plan(seen, NOW).status))


def stalled() -> dict[str, Any]:
    condition = Condition(
        type="Stalled", status="True", reason="InvalidSpec", last_transition_time="2027-01-15T08:00:00Z"
    )
    return DDPJobStatus(observed_generation=1, conditions=[condition]).as_json()


def a_failure() -> Observed:
    of = program(nodes=1, restart={"maxRestarts": 0})
    return broken(of, ended(of, 0, code=1, message=TRACEBACK))


def a_success() -> Observed:
    of = job(nodes=1)
    return observed(of, ended(of, 0), logs={"pod-uid-1-0": NO_LOG})


#: A status of a DDPJob of generation 1, and what kstatus, Argo CD and Flux make of it.
CASES: Mapping[str, tuple[dict[str, Any], str, str, str]] = {
    "not seen by the operator": ({}, "InProgress", "Progressing", "InProgress"),
    "an older generation": (
        status(running(job())) | {"observedGeneration": 0},
        "InProgress",
        "Progressing",
        "InProgress",
    ),
    "pending": (status(observed(job())), "Current", "Progressing", "InProgress"),
    "running": (running(job()).job.status.as_json(), "Current", "Progressing", "InProgress"),
    "suspended": (status(observed(job(suspend=True))), "Current", "Suspended", "Current"),
    "stalled": (stalled(), "Failed", "Degraded", "Failed"),
    "failed": (finished(a_failure()), "Current", "Degraded", "Failed"),
    "succeeded": (finished(a_success()), "Current", "Healthy", "Current"),
}


def kstatus(of: Mapping[str, Any]) -> str:
    """The rules that kstatus applies to a resource that it does not know."""
    if of.get("observedGeneration", 0) < 1:
        return "InProgress"
    true = {c["type"] for c in of.get("conditions", ()) if c["status"] == "True"}
    not_true = {c["type"] for c in of.get("conditions", ()) if c["status"] != "True"}
    if "Reconciling" in true:
        return "InProgress"
    if "Stalled" in true:
        return "Failed"
    return "InProgress" if "Ready" in not_true else "Current"


def flux(of: Mapping[str, Any]) -> str:
    (checks,) = yaml.safe_load(block("yaml"))["healthCheckExprs"]
    resource = {"metadata": json_to_cel({"generation": 1}), "status": json_to_cel(dict(of))}
    environment = celpy.Environment()
    for name in ("inProgress", "failed", "current"):  # in the order in which Flux evaluates them
        if environment.program(environment.compile(checks[name])).evaluate(resource):
            return name[0].upper() + name[1:]
    raise AssertionError("no expression is true")


def argo_cd(of: Mapping[str, Any]) -> str:
    resource = lua({"metadata": {"generation": 1}, "status": dict(of)})
    program_ = f"obj = {resource}\nlocal function health()\n{block('lua')}\nend\nprint(health().status)"
    return subprocess.run(
        ["lua", "-"], input=program_, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def lua(value: object) -> str:
    """A value of JSON as an expression of Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(key)}] = {lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return "nil" if value is None else json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("case", CASES)
def test_kstatus_sees_the_meaning_that_the_page_says(case: str) -> None:
    assert kstatus(CASES[case][0]) == CASES[case][1]


@pytest.mark.skipif(shutil.which("lua") is None, reason="needs a Lua interpreter, such as Debian's lua5.4")
@pytest.mark.parametrize("case", CASES)
def test_the_health_check_of_argo_cd(case: str) -> None:
    assert argo_cd(CASES[case][0]) == CASES[case][2]


@pytest.mark.parametrize("case", CASES)
def test_the_health_check_of_flux(case: str) -> None:
    assert flux(CASES[case][0]) == CASES[case][3]
