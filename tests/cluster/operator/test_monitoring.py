"""The chart's alerts and dashboard: promtool tests the alerts, and a Prometheus server that scrapes the operator both."""

import json
import math
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

import testbed
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess
from testbed import tools

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
FILES = REPOSITORY / "charts" / "ddpjob-operator" / "files"
ALERTS = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
#: Rows included, and what is in collapsed ones.
TILES = [tile for panel in DASHBOARD["panels"] for tile in (panel, *panel.get("panels", ()))]
PANELS = [tile for tile in TILES if tile["type"] != "row"]
#: What Grafana puts in place of its variables. The intervals hold all of a test, however slow the machine is.
VARIABLES = {"$__rate_interval": "1h", "$__range": "1h", "$job": ".*", "$namespace": ".*", "$name": ".*"}


def test_each_alert_has_a_unit_test_and_a_section_of_the_runbook() -> None:
    cases = yaml.safe_load((HERE / "alerts_test.yaml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    firing = {check["alertname"] for check in checks if check.get("exp_alerts")}
    silent = {check["alertname"] for check in checks if not check.get("exp_alerts")}
    sections = re.findall(r"^## (\w+)$", (REPOSITORY / "docs" / "how-to" / "alerts.md").read_text(), re.MULTILINE)
    assert [alert["alert"] for alert in ALERTS] == sections
    assert set(sections) == firing == silent
    for alert in ALERTS:
        assert alert["annotations"]["runbook_url"] == f"docs/how-to/alerts.md#{alert['alert'].lower()}"


def test_promtool_accepts_and_tests_the_alerts() -> None:
    for verb, file in (("check", FILES / "alerts.yaml"), ("test", HERE / "alerts_test.yaml")):
        done = subprocess.run(
            [tools.path("promtool"), verb, "rules", file], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_panel_of_the_dashboard_explains_itself() -> None:
    for panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["description"], panel["title"]
        assert defaults["unit"], panel["title"]
        if panel["type"] == "stat":  # without thresholds of its own, Grafana shows numbers from 80 in red
            assert defaults["thresholds"]["steps"], panel["title"]
        for target in panel["targets"]:  # a legend that names a unit is on the axis of another one
            assert not re.search(r"\(\w+\)$|per second", target["legendFormat"]), panel["title"]


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    positions = [tile["gridPos"] for tile in TILES]
    cells = [
        (x, y) for at in positions for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23  # Grafana's grid has 24 columns
    assert len({tile["id"] for tile in TILES}) == len(TILES)


def test_the_dashboard_reads_the_chosen_data_source_and_targets() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    _, *queried = DASHBOARD["templating"]["list"]
    assert all(variable["datasource"] == chosen for variable in queried)
    for panel in PANELS:
        assert panel["datasource"] == chosen, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == chosen, panel["title"]
            selectors = re.findall(r"\{[^{}]*\}", target["expr"])
            assert selectors, panel["title"]
            assert all('job=~"$job"' in selector for selector in selectors), panel["title"]


class Prometheus:
    """A Prometheus server that scrapes one operator every second and evaluates the chart's alerts."""

    def __init__(self, folder: Path, operator: OperatorProcess) -> None:
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(FILES / "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "ddpjob-operator", "static_configs": [{"targets": [f"127.0.0.1:{operator.port}"]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    tools.path("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        self.address = ""

    def wait(self) -> None:
        """Wait until it listens, at the port that the kernel chose, and answers queries."""

        def listens() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-4000:]
            found = re.search(r'msg="Listening on" .*?address=(127\.0\.0\.1:\d+)', self._log.read_text())
            self.address = found[1] if found else ""
            return bool(found)

        def is_ready() -> bool:
            try:
                return bool(self.ask("status/buildinfo"))
            except urllib.error.HTTPError:  # 503 until it has opened its storage
                return False

        testbed.wait_for("Prometheus to listen", listens)
        testbed.wait_for("Prometheus to be ready", is_ready)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data that its API answers."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def label_values(self, query: str) -> list[str]:
        """What a variable of the dashboard offers, whose query is label_values(selector, label)."""
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        return [value for (value,) in self.query(f"sum by ({label}) ({selector})")]

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """The values of an expression by the values of its labels, without those that are no number."""
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        result = self.ask("query", query=expression)["result"]
        values = {tuple(sorted(item["metric"].values())): float(item["value"][1]) for item in result}
        return {labels: value for labels, value in values.items() if not math.isnan(value)}


@pytest.fixture
def prometheus(tmp_path: Path, operator_process: OperatorProcess) -> Iterator[Prometheus]:
    """A server that has scraped the operator."""
    server = Prometheus(tmp_path, operator_process)
    try:
        server.wait()
        testbed.wait_for("a scrape", lambda: server.query("ddpjob_leader == 1"))
        yield server
    finally:
        server.process.kill()
        server.process.wait()


async def test_every_query_of_the_dashboard_has_data(
    cluster: testbed.ControlPlane, namespace: Namespace, prometheus: Prometheus
) -> None:
    await namespace.apply("succeeds")
    await namespace.apply("fails", restart={"maxRestarts": 0})
    await namespace.apply("restarts")
    await namespace.apply("waits", resources={"requests": {"cpu": "1000"}})
    for name in ("succeeds", "fails", "restarts"):
        await namespace.reaches(name, "Running")
    running_since = datetime.fromisoformat((await namespace.status("succeeds"))["runningSince"])
    # Goodput is a share of whole seconds.
    await eventually("a second of training", lambda: (datetime.now(UTC) - running_since).total_seconds() > 1)
    await namespace.ends("succeeds-1-0", 0)
    await namespace.ends("fails-1-0", 1)
    await namespace.ends("restarts-1-0", 1)
    await namespace.reaches("succeeds", "Succeeded")
    await namespace.reaches("fails", "Failed")
    await namespace.reaches("restarts", "Running", attempt=2)
    progress = {"step": 10, "totalSteps": 100, "loss": 0.31, "etaSeconds": 90}
    cluster.append_kwok_log(namespace.name, "restarts-2-0", f"ddpjob-progress {json.dumps(progress)}")

    queries = {target["expr"]: panel["title"] for panel in PANELS for target in panel["targets"]}

    def all_have_data() -> bool:
        missing[:] = [title for query, title in queries.items() if not prometheus.query(query)]
        return not missing

    missing: list[str] = []
    try:
        await eventually("all panels to have data", all_have_data)
    except AssertionError as error:
        raise AssertionError(f"panels without data: {missing}") from error

    def ends_are_counted() -> bool:
        finished = prometheus.query("sum by (outcome, reason) (ddpjob_jobs_finished_total) > 0")
        return finished.keys() >= {("Succeeded", "succeeded"), ("ProgramError", "failed")}

    def restart_is_counted() -> bool:
        return ("ProgramError", "true") in prometheus.query("sum by (reason, counted) (ddpjob_job_restarts_total) > 0")

    def are_all_evaluated() -> bool:
        health[:] = [
            (rule["name"], rule["health"]) for group in prometheus.ask("rules")["groups"] for rule in group["rules"]
        ]
        return "unknown" not in dict(health).values()

    def variables_have_values() -> bool:
        _, *queried = DASHBOARD["templating"]["list"]
        return all(prometheus.label_values(variable["query"]["query"]) for variable in queried)

    health: list[tuple[str, str]] = []
    await eventually("the dashboard's variables to have values", variables_have_values)
    await eventually("both ends to be counted", ends_are_counted)
    await eventually("the restart to be counted", restart_is_counted)
    await eventually("all alerts to be evaluated", are_all_evaluated)
    assert dict(health) == {alert["alert"]: "ok" for alert in ALERTS}
    for title, metric, labels in (
        ("Jobs finished", "ddpjob_jobs_finished_total", "outcome, reason"),
        ("Restarts", "ddpjob_job_restarts_total", "reason, counted"),
        ("Gangs waiting, by reason", "ddpjob_gangs_waiting", "reason"),
    ):  # legends name what happened, not all that can
        (panel,) = (panel for panel in PANELS if panel["title"] == title)
        shown = prometheus.query(panel["targets"][0]["expr"])
        assert len(shown) < len(prometheus.query(f"sum by ({labels}) ({metric})")), title
