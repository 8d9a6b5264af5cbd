"""The report shows a job to a colleague and reveals no secrets; texts of programs cannot become a part of the page."""

import re

import pytest

from ddpjob.client.jobs import read_job
from ddpjob_cli.curves import Curves
from ddpjob_cli.report_page import page, redacted
from support.report_of_a_job import BODY, report


def test_the_page_shows_the_whole_story() -> None:
    text = report()

    for shown in (
        "team-a/net",
        "no restarts are left",
        "gpu-3",
        "training 50m",
        "lost 8m20s",
        "Accuracy in %",
        "net-2-1",
    ):
        assert shown in text, shown
    assert text.count("<svg") == 2
    assert text.count('class="restart"') == 2


def test_a_finished_job_has_no_time_left() -> None:
    status = {**BODY["status"], "progress": {"step": 345, "eta": "0s"}}
    for ended, conditions in ((True, status["conditions"]), (False, [])):
        job = read_job({**BODY, "status": {**status, "conditions": conditions}})
        text = page(job, [], [], Curves(points={}), [], versions={}, created="now")
        assert ("ETA" in text) is not ended


def test_texts_of_programs_are_no_part_of_the_page() -> None:
    text = report()

    assert "<script" not in text
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_page_loads_nothing() -> None:
    assert not re.search(r"https?://|@import|url\(|<link|<img|<iframe|\ssrc=", report())


def test_secrets_are_left_out() -> None:
    assert "hunter2" not in report()
    spec = redacted(BODY)["spec"]
    assert spec["command"] == ["python", "train.py", "--api-key", "(left out)", "--token=(left out)", "--lr", "0.1"]
    assert spec["env"] == [{"name": "HF_TOKEN", "value": "(left out)"}]


def test_no_part_of_a_manifest_keeps_a_secret() -> None:
    body = {
        "metadata": {"annotations": {"kapp.k14s.io/original": '{"a": "LEAK"}', "kueue.x-k8s.io/a": "KEPT"}},
        "spec": {
            "command": ["sh", "-c", "A=1 HF_TOKEN=LEAK python t.py --wandb-key LEAK; curl -H 'X-Auth: LEAK' --lr KEPT"],
            "env": [{"name": "A", "value": "LEAK"}, {"name": "B", "value": "LEAK", "x": "KEPT"}],
            "trainer": {"settings": {"hub_auth": "LEAK", "tokenizer": "KEPT", "max_tokens": "KEPT"}},
            "template": {
                "metadata": {"annotations": {"x": "LEAK"}},
                "spec": {
                    "initContainers": [
                        {"command": ["git", "clone", "https://user:LEAK@git.example.org/KEPT"]},
                        {
                            "args": [
                                "--auth",
                                "LEAK",
                                "-p",
                                "LEAK",
                                "--pat=LEAK",
                                '{"api_key": "LEAK"}',
                                "--path",
                                "KEPT",
                            ]
                        },
                    ],
                    "tolerations": [{"key": "KEPT"}],
                    "volumes": [
                        {"csi": {"driver": "KEPT", "volumeAttributes": {"mountOptions": "password=LEAK", "x": "LEAK"}}},
                        {"secret": {"secretName": "KEPT"}, "flexVolume": {"options": {"a": "LEAK"}}},
                    ],
                },
            },
        },
    }
    text = str(redacted(body))
    assert "LEAK" not in text
    assert text.count("KEPT") == str(body).count("KEPT")


def test_the_password_of_an_address_is_on_no_part_of_the_page() -> None:
    status = {**BODY["status"], "message": "cannot clone https://user:LEAK@git.example.org"}
    text = page(read_job({**BODY, "status": status}), [], [], Curves(points={}), [], versions={}, created="now")
    assert "git.example.org" in text
    assert "LEAK" not in text


def test_a_local_run_has_no_events_that_a_cluster_could_have_kept() -> None:
    local = {**BODY, "metadata": {**BODY["metadata"], "annotations": {"ddpjob.dev/local-run": ".ddpjob/runs/net"}}}
    texts = [page(read_job(body), [], [], Curves(points={}), [], versions={}, created="now") for body in (BODY, local)]
    assert ["still keeps" in text for text in texts] == [True, False]
    assert "A local run has no events." in texts[1]


def test_a_job_without_a_status_has_a_report() -> None:
    job = read_job({key: value for key, value in BODY.items() if key != "status"})

    assert "team-a/net is Pending" in page(job, [], [], Curves(points={}), [], versions={}, created="now")


def test_each_attempt_has_one_row() -> None:
    second = {"phase": "Succeeded", "attempts": BODY["status"]["attempts"][:1]}
    for changes, ends in (({}, ["ProgramError", "ProgramError"]), (second, ["ProgramError", "Succeeded"])):
        job = read_job({**BODY, "status": {**BODY["status"], **changes}})
        text = page(job, [], [], Curves(points={}), [], versions={}, created="now")
        assert re.findall(r'<td data-title="cause">(\w+)<', text) == ends


@pytest.mark.parametrize("unit", ["a", "-", "key", "auth=", "--a ", "://a", "-p ", " ", "'", "key "])
def test_a_long_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    """A quadratic search would take an hour for it."""
    text = unit * (2**17 // len(unit))
    assert redacted({"spec": {"args": [text]}})
