"""Create one DDPJob and wait until it succeeds. `helm test` runs this program in the operator's image.

The exit code is 0 if the job succeeded; otherwise it is 1 and the job's last status is printed. The job is deleted in
both cases. If this program is killed before that, the job's ttlSecondsAfterFinished deletes it.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config

POLL_SECONDS = 1.0
REQUEST_TIMEOUT_SECONDS = 10.0


def main() -> int:
    """Run the job that the command line names and return the exit code."""
    parser = argparse.ArgumentParser(description="Create one DDPJob, wait until it succeeds, delete it.")
    parser.add_argument("job", type=Path, help="file with the DDPJob as JSON, with a namespace and a generateName")
    parser.add_argument("--deadline-seconds", type=float, required=True, help="longest wait for the end of the job")
    options = parser.parse_args()

    if "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the package has no annotations
    else:
        config.load_kube_config()  # type: ignore[no-untyped-call]  # the same
    jobs = Jobs(json.loads(options.job.read_text()))
    name = jobs.create()
    try:
        return wait_for_success(jobs, name, options.deadline_seconds)
    finally:
        jobs.delete(name)


class Jobs:
    """The three API calls that this program needs, on jobs like `manifest`."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        group, version = manifest["apiVersion"].split("/")
        self._where: dict[str, Any] = {
            "group": group,
            "version": version,
            "namespace": manifest["metadata"]["namespace"],
            "plural": "ddpjobs",
            "_request_timeout": REQUEST_TIMEOUT_SECONDS,
        }
        self._api = client.CustomObjectsApi()

    def create(self) -> str:
        """Create the job and return its name."""
        job: Any = self._api.create_namespaced_custom_object(**self._where, body=self._manifest)
        say(f"created DDPJob {job['metadata']['namespace']}/{job['metadata']['name']}")
        return str(job["metadata"]["name"])

    def status(self, name: str) -> dict[str, Any]:
        """The job's status; empty until the operator writes it for the first time."""
        job: Any = self._api.get_namespaced_custom_object(**self._where, name=name)
        return dict(job.get("status") or {})

    def delete(self, name: str) -> None:
        """Delete the job; its pods and its Service are deleted with it."""
        self._api.delete_namespaced_custom_object(**self._where, name=name)
        say(f"deleted DDPJob {self._where['namespace']}/{name}")


def wait_for_success(jobs: Jobs, name: str, deadline_seconds: float) -> int:
    """Print every change of the job's status until its end; 0 if it succeeded within the deadline, otherwise 1."""
    status: dict[str, Any] = {}
    printed = ""
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        status = jobs.status(name)
        if (now := summary(status)) != printed:
            say(now)
            printed = now
        if holds(status, "Succeeded"):
            return 0
        if holds(status, "Failed"):
            break
        time.sleep(POLL_SECONDS)
    else:
        if status:
            say(
                f"DDPJob {name} neither succeeded nor failed within {deadline_seconds:g} s; the reason is above. The first"
                " pull of the trainer's image can take longer than that: run the test again when it is done"
            )
        else:
            say(
                f"DDPJob {name} has no status after {deadline_seconds:g} s: no operator reconciles it. Read the operator's"
                " log, and check that the operator watches the job's namespace"
            )
    say(f"last status: {json.dumps(status, indent=2)}")
    return 1


def holds(status: dict[str, Any], condition: str) -> bool:
    """Whether the job has the condition of this type with the status True."""
    return any(c["type"] == condition and c["status"] == "True" for c in status.get("conditions", []))


def summary(status: dict[str, Any]) -> str:
    """The status in one line."""
    parts = [status.get("phase", "no status yet"), status.get("ready", ""), status.get("message", "")]
    return " · ".join(part for part in parts if part)


def say(text: str) -> None:
    """Print without buffering, because the log is followed."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
